//! What a run is to cover: `--only` and `--quick` against what the workspace has.
//!
//! A test program uses the services that its name contains, between underscores:
//! `redis_zookeeper_failover` uses Redis and `ZooKeeper`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::services::Service;
use crate::workspace;

/// The server, whose brokers and cluster are features that are off by default.
const SERVER: &str = "laneway-server";
/// Turns them on, for tests and lints of all that there is.
pub(super) const BROKERS: &str =
    "--features=laneway-server/cluster,laneway-server/kafka,laneway-server/nats";
/// Runs the checks only.
const CHECKS: &str = "checks";
/// Runs the test of TLS and SCRAM on Kafka only.
const KAFKA_TLS: &str = "kafka-tls";
/// Runs the tests on all services.
const SERVICES: &str = "services";

/// What `cargo metadata` says, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(super) struct Workspace {
    packages: Vec<Package>,
    workspace_default_members: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    #[serde(default)]
    features: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    doctest: bool,
}

impl Target {
    fn is_integration_test(&self) -> bool {
        self.kind.iter().any(|kind| kind == "test")
    }
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) checks: Checks,
    /// Arguments that tell cargo which tests to build. None: no tests at all.
    pub(super) tests: Option<Vec<String>>,
    /// Arguments that tell cargo which packages' doc tests to run. None: no doc tests.
    pub(super) doc_tests: Option<Vec<String>>,
    pub(super) services: BTreeSet<Service>,
    /// TLS and SCRAM on Kafka, built with OpenSSL.
    pub(super) kafka_tls: bool,
}

/// How much of the first stage is wanted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    #[default]
    None,
    /// Formatting and lints of what users build.
    Quick,
    All,
}

impl Workspace {
    pub(super) fn load() -> Result<Self> {
        let output = workspace::cargo()
            .args(["metadata", "--no-deps", "--format-version=1"])
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata printed unexpected JSON")
    }

    /// The folder of a package, for test programs expect to run in it.
    pub(super) fn package(&self, id: &str) -> Option<(&str, PathBuf)> {
        let package = self.packages.iter().find(|package| package.id == id)?;
        let folder = package.manifest_path.parent()?;
        Some((&package.name, folder.to_owned()))
    }

    /// The folders of all packages.
    pub(super) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.packages
            .iter()
            .filter_map(|package| package.manifest_path.parent())
    }

    /// What users build, each with the names of its features.
    pub(super) fn features(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &str>)> {
        self.default_members().into_iter().map(|package| {
            let features = package.features.keys().map(String::as_str);
            (package.name.as_str(), features)
        })
    }

    /// Everything, or with `quick` what can be known within a minute or two.
    pub(super) fn everything(&self, quick: bool) -> Selection {
        if quick {
            let members = self.default_members();
            return Selection {
                checks: Checks::Quick,
                doc_tests: members.iter().any(|p| p.has_doc_tests()).then(Vec::new),
                tests: Some(Vec::new()),
                ..Selection::default()
            };
        }
        Selection {
            checks: Checks::All,
            tests: Some(vec!["--workspace".into(), BROKERS.into()]),
            doc_tests: Some(vec!["--workspace".into(), BROKERS.into()]),
            services: self.test_programs().flat_map(services_of).collect(),
            kafka_tls: true,
        }
    }

    /// What `--only NAME` names: `checks`, `services`, a service, a package or a test program.
    pub(super) fn only(&self, name: &str, quick: bool) -> Result<Selection> {
        let mut selection = if name == CHECKS {
            Selection {
                checks: if quick { Checks::Quick } else { Checks::All },
                ..Selection::default()
            }
        } else if name == KAFKA_TLS {
            Selection {
                services: [Service::Kafka].into(),
                kafka_tls: true,
                ..Selection::default()
            }
        } else if name == SERVICES {
            self.programs(|program| !services_of(program).is_empty())
        } else if let Some(service) = service(name) {
            self.programs(|program| services_of(program).contains(&service))
        } else if let Some(package) = self.packages.iter().find(|package| package.name == name) {
            package.select()
        } else {
            self.programs(|program| program == name)
        };
        if selection == Selection::default() {
            bail!(
                "--only {name}: there are no such tests; choose from {}",
                self.names()
            );
        }
        if quick {
            selection.services.clear();
        }
        Ok(selection)
    }

    /// The integration test programs that `wanted` accepts, wherever they are.
    fn programs(&self, wanted: impl Fn(&str) -> bool) -> Selection {
        let programs: BTreeSet<&str> = self.test_programs().filter(|name| wanted(name)).collect();
        if programs.is_empty() {
            return Selection::default();
        }
        // The whole workspace, because then dependencies have the same features as in a full run
        // and are not compiled a second time.
        let mut tests = vec!["--workspace".to_owned(), BROKERS.to_owned()];
        tests.extend(programs.iter().map(|program| format!("--test={program}")));
        Selection {
            tests: Some(tests),
            services: programs.into_iter().flat_map(services_of).collect(),
            ..Selection::default()
        }
    }

    fn test_programs(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().flat_map(Package::test_programs)
    }

    fn default_members(&self) -> Vec<&Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_default_members.contains(&package.id))
            .collect()
    }

    fn names(&self) -> String {
        let mut names: BTreeSet<String> = [CHECKS, KAFKA_TLS, SERVICES].map(String::from).into();
        names.extend(self.packages.iter().map(|package| package.name.clone()));
        for program in self.test_programs() {
            names.insert(program.to_owned());
            names.extend(services_of(program).iter().map(Service::to_string));
        }
        names.into_iter().collect::<Vec<_>>().join(", ")
    }
}

impl Package {
    fn select(&self) -> Selection {
        let mut arguments = vec![format!("--package={}", self.name)];
        if self.name == SERVER {
            arguments.push(BROKERS.to_owned());
        }
        Selection {
            checks: Checks::None,
            doc_tests: self.has_doc_tests().then(|| arguments.clone()),
            tests: Some(arguments),
            services: self.test_programs().flat_map(services_of).collect(),
            kafka_tls: false,
        }
    }

    fn test_programs(&self) -> impl Iterator<Item = &str> {
        self.targets
            .iter()
            .filter(|target| target.is_integration_test())
            .map(|target| target.name.as_str())
    }

    /// Cargo refuses `--doc` where no chosen package has a library.
    fn has_doc_tests(&self) -> bool {
        self.targets.iter().any(|target| target.doctest)
    }
}

fn service(name: &str) -> Option<Service> {
    Service::ALL
        .into_iter()
        .find(|service| service.name() == name)
}

fn services_of(program: &str) -> BTreeSet<Service> {
    program.split('_').filter_map(service).collect()
}

#[cfg(test)]
mod tests {
    use super::{Checks, Workspace};
    use crate::services::Service;

    fn workspace() -> Workspace {
        serde_json::from_str(
            r#"{
                "workspace_default_members": ["a"],
                "packages": [
                    {"id": "a", "name": "alpha", "manifest_path": "alpha/Cargo.toml", "targets": [
                        {"name": "alpha", "kind": ["lib"], "doctest": true},
                        {"name": "nats_publish", "kind": ["test"], "doctest": false}
                    ]},
                    {"id": "b", "name": "beta", "manifest_path": "beta/Cargo.toml", "targets": [
                        {"name": "beta", "kind": ["bin"], "doctest": false},
                        {"name": "redis_nats_failover", "kind": ["test"], "doctest": false}
                    ]}
                ]
            }"#,
        )
        .expect("the JSON is what cargo prints")
    }

    #[test]
    fn a_service_selects_the_programs_that_name_it_and_brings_what_they_need() {
        let selection = workspace().only("nats", false).unwrap();
        assert_eq!(
            selection.tests.unwrap(),
            [
                "--workspace",
                super::BROKERS,
                "--test=nats_publish",
                "--test=redis_nats_failover"
            ]
        );
        assert_eq!(selection.services, [Service::Nats, Service::Redis].into());
        assert_eq!(selection.doc_tests, None);
        assert_eq!(selection.checks, Checks::None);
    }

    #[test]
    fn a_package_brings_its_services_and_doc_tests() {
        let selection = workspace().only("alpha", false).unwrap();
        assert_eq!(selection.tests.unwrap(), ["--package=alpha"]);
        assert_eq!(selection.doc_tests.unwrap(), ["--package=alpha"]);
        assert_eq!(selection.services, [Service::Nats].into());
        assert_eq!(workspace().only("beta", false).unwrap().doc_tests, None);
    }

    #[test]
    fn everything_needs_only_services_that_tests_use() {
        let everything = workspace().everything(false);
        assert_eq!(everything.services, [Service::Nats, Service::Redis].into());
        assert!(workspace().everything(true).services.is_empty());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = workspace().only("kafka", false).unwrap_err().to_string();
        assert!(error.contains("--only kafka"), "{error}");
        assert!(error.contains("redis_nats_failover"), "{error}");
        assert!(error.contains("checks"), "{error}");
    }

    #[test]
    fn quick_starts_no_service() {
        let selection = workspace().only("nats", true).unwrap();
        assert!(selection.services.is_empty());
    }
}

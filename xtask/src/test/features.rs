//! Every feature compiles alone, and so do none of them and all of them.
//!
//! `cargo check` of the library alone, in the target folder of everything else: dependencies are shared, so a
//! combination costs the seconds that one crate takes, and nothing when nothing has changed. The test of what
//! [`APART`] adds is a suite of its own.

use std::process::Command;

use super::checks;
use super::selection::Workspace;
use super::summary::Row;
use crate::workspace::cargo;

/// Compiles OpenSSL: see [`tls`](super::tls), which builds it once, in the way that is cheapest here.
const APART: &str = "kafka-tls";

/// Checks the combinations of all packages that users build.
pub(super) fn check(workspace: &Workspace) -> Row {
    let mut all = Row {
        suite: "features".to_owned(),
        ..Row::default()
    };
    for (package, features) in workspace.features() {
        for combination in combinations(features) {
            let shown = match combination.as_str() {
                "" => "no features",
                features => features,
            };
            let name = format!("features: {package}, {shown}");
            let row = checks::check(&name, &mut command(package, &combination));
            all.passed += row.passed;
            all.failed += row.failed;
            all.failures.extend(row.failures);
            all.took += row.took;
        }
    }
    all
}

/// None, each alone, and all together, as cargo takes them.
fn combinations<'a>(features: impl Iterator<Item = &'a str>) -> Vec<String> {
    let features: Vec<&str> = features
        .filter(|feature| !["default", APART].contains(feature))
        .collect();
    if features.is_empty() {
        return Vec::new();
    }
    let mut combinations = vec![String::new()];
    combinations.extend(features.iter().map(|feature| (*feature).to_owned()));
    if features.len() > 1 {
        combinations.push(features.join(","));
    }
    combinations
}

fn command(package: &str, features: &str) -> Command {
    let mut command = cargo();
    command
        .args(["check", "--package", package, "--no-default-features"])
        .args(["--features", features]);
    command
}

#[cfg(test)]
mod tests {
    use super::combinations;

    #[test]
    fn each_feature_is_tried_alone_and_so_are_none_and_all() {
        let features = ["default", "file", "kafka-tls", "nats"].into_iter();
        assert_eq!(combinations(features), ["", "file", "nats", "file,nats"]);
        assert!(combinations(["default"].into_iter()).is_empty());
        assert_eq!(combinations(["callback"].into_iter()), ["", "callback"]);
    }
}

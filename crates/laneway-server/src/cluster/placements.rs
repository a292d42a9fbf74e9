//! The role admin: which workers topics have, and how they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use laneway_cluster::balance::{Mapping, Placement, Strategy};
use laneway_cluster::catalog::Catalog;
use laneway_registry::Directory;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::catalog::{NotSet, SharedCatalog};

/// The longest name of a topic or a worker, in bytes.
const LONGEST: usize = 256;

/// The most workers that a topic is given by name.
const MOST_WORKERS: usize = 1_000;

/// Placements of all topics.
#[derive(Debug)]
pub(crate) struct Placements {
    pub(super) catalog: Arc<SharedCatalog>,
    pub(super) workers: watch::Receiver<Directory>,
}

/// What is to be set for a topic. What is left out stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlacementChange {
    /// All workers.
    all: Option<bool>,
    /// These, by name.
    workers: Option<BTreeSet<String>>,
    /// So many of those that live, drawn now.
    random: Option<u32>,
    /// The name of a strategy.
    balance: Option<String>,
}

/// What is set for a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlacementView {
    topic: String,
    /// Whether all workers are its own.
    all: bool,
    /// Their names otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<BTreeSet<String>>,
    /// How many were asked for, if they were drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    random: Option<u32>,
    balance: &'static str,
    /// Whether nothing was set for it.
    is_default: bool,
    /// Its workers that are not there now.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    missing: BTreeSet<String>,
}

/// What cannot be set, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Unfit {
    pub(crate) field: &'static str,
    pub(crate) problem: String,
}

fn unfit(field: &'static str, problem: impl Into<String>) -> Unfit {
    Unfit {
        field,
        problem: problem.into(),
    }
}

impl Placements {
    /// All topics for which something is set.
    pub(crate) fn list(&self) -> Vec<PlacementView> {
        let catalog = self.catalog.now();
        let topics = catalog.topics.keys();
        topics.map(|topic| self.view(&catalog, topic)).collect()
    }

    /// One topic.
    pub(crate) fn get(&self, topic: &str) -> Result<PlacementView, Unfit> {
        name("topic", topic)?;
        Ok(self.view(&self.catalog.now(), topic))
    }

    /// Sets something for a topic.
    pub(crate) async fn put(
        &self,
        topic: &str,
        change: &PlacementChange,
    ) -> Result<PlacementView, NotSet<Unfit>> {
        name("topic", topic).map_err(NotSet::Refused)?;
        let set = |catalog: &mut Catalog| {
            let mut placement = catalog.placement(topic);
            change.apply(&mut placement, &self.names(), rand_number)?;
            catalog.topics.insert(topic.to_owned(), placement);
            Ok(self.view(catalog, topic))
        };
        self.catalog.change(set).await
    }

    /// Takes back what was set for a topic.
    pub(crate) async fn delete(&self, topic: &str) -> Result<PlacementView, NotSet<Unfit>> {
        name("topic", topic).map_err(NotSet::Refused)?;
        let set = |catalog: &mut Catalog| {
            catalog.topics.remove(topic);
            Ok(self.view(catalog, topic))
        };
        self.catalog.change(set).await
    }

    /// The names of the workers that live and are not drained.
    fn names(&self) -> BTreeSet<String> {
        let directory = self.workers.borrow().clone();
        let drained = |id: &laneway_registry::InstanceId| self.catalog.is_drained(*id);
        let there = directory.instances().filter(|it| !drained(&it.id));
        there.map(|it| it.name.clone()).collect()
    }

    fn view(&self, catalog: &Catalog, topic: &str) -> PlacementView {
        let placement = catalog.placement(topic);
        let workers = match placement.mapping {
            Mapping::All => None,
            Mapping::Some(names) => Some(names),
        };
        let there = self.names();
        let missing = workers.iter().flatten().filter(|it| !there.contains(*it));
        PlacementView {
            topic: topic.to_owned(),
            all: workers.is_none(),
            missing: missing.cloned().collect(),
            workers,
            random: placement.drawn,
            balance: placement.strategy.as_str(),
            is_default: !catalog.topics.contains_key(topic),
        }
    }
}

impl PlacementChange {
    fn apply(
        &self,
        placement: &mut Placement,
        there: &BTreeSet<String>,
        draw: impl FnMut() -> u64,
    ) -> Result<(), Unfit> {
        let mapping = match (self.all, &self.workers, self.random) {
            (None, None, None) => None,
            (Some(true), None, None) => Some((Mapping::All, None)),
            (Some(false), None, None) => {
                return Err(unfit("all", "it is false: name the workers in `workers`"));
            }
            (None, Some(names), None) => Some((named(names)?, None)),
            (None, None, Some(count)) => Some((drawn(there, count, draw)?, Some(count))),
            _ => {
                let problem = "give one of `all`, `workers` and `random`";
                return Err(unfit("workers", problem));
            }
        };
        if mapping.is_none() && self.balance.is_none() {
            let problem =
                "there is nothing to set: give `all`, `workers` or `random`, or `balance`";
            return Err(unfit("workers", problem));
        }
        if let Some(balance) = &self.balance {
            placement.strategy = strategy(balance)?;
        }
        if let Some((mapping, count)) = mapping {
            placement.mapping = mapping;
            placement.drawn = count;
        }
        Ok(())
    }
}

fn named(names: &BTreeSet<String>) -> Result<Mapping, Unfit> {
    if names.is_empty() {
        let problem = "there are none: name one or more, or set `all` to true";
        return Err(unfit("workers", problem));
    }
    if names.len() > MOST_WORKERS {
        let problem = format!("there are {}; name at most {MOST_WORKERS}", names.len());
        return Err(unfit("workers", problem));
    }
    for worker in names {
        name("workers", worker)?;
    }
    Ok(Mapping::Some(names.clone()))
}

fn drawn(
    there: &BTreeSet<String>,
    count: u32,
    draw: impl FnMut() -> u64,
) -> Result<Mapping, Unfit> {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 || wanted > there.len() {
        let there = there.len();
        let problem = format!(
            "it is {count}, and {there} workers with names of their own are there now: use 1 to {there}, or start more first"
        );
        return Err(unfit("random", problem));
    }
    Ok(Mapping::drawn(there, wanted, draw))
}

fn strategy(text: &str) -> Result<Strategy, Unfit> {
    let found = Strategy::ALL.into_iter().find(|it| it.as_str() == text);
    found.ok_or_else(|| {
        let all = Strategy::ALL.map(Strategy::as_str).join(", ");
        unfit("balance", format!("{text:?} is none of {all}"))
    })
}

fn name(field: &'static str, name: &str) -> Result<(), Unfit> {
    if name.is_empty() || name.len() > LONGEST || name.chars().any(char::is_control) {
        let problem = format!("a name has 1 to {LONGEST} bytes and no control characters");
        return Err(unfit(field, problem));
    }
    Ok(())
}

/// A number drawn at random.
fn rand_number() -> u64 {
    let random = ring::rand::SystemRandom::new();
    let mut bytes = [0; 8];
    // Without numbers of the system the first ones are chosen.
    let _ = ring::rand::SecureRandom::fill(&random, &mut bytes);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(json: &str) -> Result<Placement, String> {
        let change: PlacementChange = serde_json::from_str(json).map_err(|it| it.to_string())?;
        let there = ["a", "b", "c"].map(str::to_owned).into();
        let mut placement = Placement::default();
        let result = change.apply(&mut placement, &there, || 0);
        result.map_err(|unfit| format!("{}: {}", unfit.field, unfit.problem))?;
        Ok(placement)
    }

    #[test]
    fn what_is_left_out_stays_and_the_rest_is_set() {
        let placement = applied(r#"{"balance":"least-loaded"}"#).expect("set");
        assert_eq!(placement.mapping, Mapping::All);
        assert_eq!(placement.strategy, Strategy::LeastLoaded);
        let placement = applied(r#"{"workers":["b","later"]}"#).expect("set");
        let expected = ["b", "later"].map(str::to_owned).into();
        assert_eq!(placement.mapping, Mapping::Some(expected));
        assert_eq!(placement.strategy, Strategy::SmoothWeightedRoundRobin);
        let placement = applied(r#"{"random":2,"balance":"random"}"#).expect("set");
        let Mapping::Some(names) = placement.mapping else {
            panic!("they were drawn")
        };
        assert_eq!((names.len(), placement.drawn), (2, Some(2)));
    }

    #[test]
    fn what_cannot_be_set_names_the_field_and_what_to_do() {
        for (json, expected) in [
            ("{}", "workers: there is nothing to set"),
            (r#"{"all":false}"#, "all: it is false"),
            (r#"{"workers":[]}"#, "workers: there are none"),
            (r#"{"workers":[""]}"#, "workers: a name has"),
            (r#"{"all":true,"random":1}"#, "workers: give one of"),
            (r#"{"random":0}"#, "random: it is 0, and 3 workers"),
            (r#"{"random":4}"#, "random: it is 4, and 3 workers"),
            (
                r#"{"balance":"fair"}"#,
                "balance: \"fair\" is none of random, round-robin",
            ),
            (r#"{"worker":["a"]}"#, "unknown field `worker`"),
        ] {
            let error = applied(json).expect_err(json);
            assert!(error.starts_with(expected), "{json}: {error}");
        }
    }
}

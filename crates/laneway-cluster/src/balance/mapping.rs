use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Worker;

/// Which workers a topic has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// All of them, also those to come.
    #[default]
    All,
    /// Those with these names.
    Some(BTreeSet<String>),
}

impl Mapping {
    /// `count` of these workers, drawn at random without repetition, by the numbers of `draw`. All of them, if there are no more.
    #[must_use]
    pub fn drawn(names: &BTreeSet<String>, count: usize, mut draw: impl FnMut() -> u64) -> Self {
        let mut left: Vec<&String> = names.iter().collect();
        let mut chosen = BTreeSet::new();
        while chosen.len() < count && !left.is_empty() {
            let index = super::strategy::below(left.len() as u64, draw());
            let index = usize::try_from(index).unwrap_or(0);
            chosen.insert(left.swap_remove(index).clone());
        }
        Self::Some(chosen)
    }

    /// The workers of the topic that live; any that live, if none of its own does: late is better than never.
    #[must_use]
    pub fn candidates<'a>(&self, alive: &'a [Worker]) -> Vec<&'a Worker> {
        let own: Vec<_> = alive.iter().filter(|worker| self.has(worker)).collect();
        if own.is_empty() {
            alive.iter().collect()
        } else {
            own
        }
    }

    /// Whether a worker is one of the topic's own.
    #[must_use]
    pub fn has(&self, worker: &Worker) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(&worker.name),
        }
    }

    /// Takes a worker out, and puts one of the others in its place, if there is one that lives.
    pub fn replace(&mut self, gone: &str, alive: &[Worker], draw: u64) {
        let Self::Some(names) = self else { return };
        if !names.remove(gone) {
            return;
        }
        let others: Vec<_> = alive
            .iter()
            .filter(|worker| worker.name != gone && !names.contains(&worker.name))
            .collect();
        if others.is_empty() {
            return;
        }
        let index = super::strategy::below(others.len() as u64, draw);
        if let Some(worker) = usize::try_from(index).ok().and_then(|at| others.get(at)) {
            names.insert(worker.name.clone());
        }
    }
}

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Worker;
use crate::record::Instance;

/// How the workers of a topic share its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// Any of them, all alike.
    #[default]
    Random,
    /// One after the other.
    RoundRobin,
    /// Any of them, by weight.
    WeightedRandom,
    /// One after the other, by weight, the heavy ones spread out.
    SmoothWeightedRoundRobin,
    /// The one that holds the fewest messages for its weight.
    LeastLoaded,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Random,
        Self::RoundRobin,
        Self::WeightedRandom,
        Self::SmoothWeightedRoundRobin,
        Self::LeastLoaded,
    ];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::WeightedRandom => "weighted-random",
            Self::SmoothWeightedRoundRobin => "smooth-weighted-round-robin",
            Self::LeastLoaded => "least-loaded",
        }
    }
}

/// Chooses among workers. Each topic of each center has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    strategy: Strategy,
    /// Round robin: the last one.
    last: Option<Instance>,
    /// Smooth weighted round robin: what each one is ahead of its share.
    ahead: BTreeMap<Instance, i64>,
    /// Least loaded: what each one was given since it last reported.
    given: BTreeMap<Instance, (u64, u64)>,
}

impl Balancer {
    /// A balancer that has chosen nothing yet.
    #[must_use]
    pub const fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            last: None,
            ahead: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    /// By which strategy it chooses.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The next worker; `None` if there is none. `draw` is a number drawn at random from all there are.
    pub fn choose(&mut self, candidates: &[&Worker], draw: u64) -> Option<Instance> {
        if candidates.is_empty() {
            return None;
        }
        let chosen = match self.strategy {
            Strategy::Random => nth(candidates, below(candidates.len() as u64, draw)),
            Strategy::RoundRobin => self.next_in_turn(candidates),
            Strategy::WeightedRandom => by_weight(candidates, draw),
            Strategy::SmoothWeightedRoundRobin => self.smooth(candidates),
            Strategy::LeastLoaded => self.least_loaded(candidates, draw),
        };
        chosen.map(|worker| worker.instance)
    }

    /// The one behind the last one, in the order of instances: workers come and go without another being skipped.
    fn next_in_turn<'a>(&mut self, candidates: &[&'a Worker]) -> Option<&'a Worker> {
        let behind = |worker: &&&Worker| Some(worker.instance) > self.last;
        let next = candidates.iter().filter(behind);
        let next = next.min_by_key(|worker| worker.instance);
        let first = || candidates.iter().min_by_key(|worker| worker.instance);
        let chosen = next.or_else(first).copied();
        self.last = chosen.map(|worker| worker.instance);
        chosen
    }

    /// As nginx does it: all gain their weight, and the one that has gained most pays for all.
    fn smooth<'a>(&mut self, candidates: &[&'a Worker]) -> Option<&'a Worker> {
        let is_candidate =
            |instance: &Instance| candidates.iter().any(|worker| worker.instance == *instance);
        self.ahead.retain(|instance, _| is_candidate(instance));
        let mut total = 0_i64;
        for worker in candidates {
            let weight = i64::from(worker.effective_weight());
            total += weight;
            *self.ahead.entry(worker.instance).or_default() += weight;
        }
        let gained = |worker: &&&'a Worker| {
            let ahead = self.ahead.get(&worker.instance).copied();
            (
                ahead.unwrap_or_default(),
                std::cmp::Reverse(worker.instance),
            )
        };
        let chosen = candidates.iter().max_by_key(gained).copied()?;
        *self.ahead.entry(chosen.instance).or_default() -= total;
        Some(chosen)
    }

    fn least_loaded<'a>(&mut self, candidates: &[&'a Worker], draw: u64) -> Option<&'a Worker> {
        for worker in candidates {
            let held = worker.load.held;
            let (reported, given) = self.given.entry(worker.instance).or_insert((held, 0));
            if *reported != held {
                (*reported, *given) = (held, 0);
            }
        }
        let is_candidate =
            |instance: &Instance| candidates.iter().any(|worker| worker.instance == *instance);
        self.given.retain(|instance, _| is_candidate(instance));
        // What one more message would make of it. Compared without dividing: a/b < c/d is a·d < c·b.
        let after = |worker: &Worker| {
            let given = self.given.get(&worker.instance);
            let given = given.map_or(0, |(_, given)| *given);
            let held = u128::from(worker.load.held) + u128::from(given) + 1;
            (held, u128::from(worker.weight.max(1)))
        };
        let least = candidates.iter().min_by(|one, other| {
            let ((held, weight), (other_held, other_weight)) = (after(one), after(other));
            (held * other_weight).cmp(&(other_held * weight))
        })?;
        let (held, weight) = after(least);
        // Among equals by chance: otherwise all centers choose the same one until it reports.
        let equals: Vec<&'a Worker> = candidates
            .iter()
            .filter(|worker| {
                let (other_held, other_weight) = after(worker);
                held * other_weight == other_held * weight
            })
            .copied()
            .collect();
        let chosen = nth(&equals, below(equals.len() as u64, draw))?;
        if let Some((_, given)) = self.given.get_mut(&chosen.instance) {
            *given += 1;
        }
        Some(chosen)
    }
}

fn nth<'a>(candidates: &[&'a Worker], index: u64) -> Option<&'a Worker> {
    let index = usize::try_from(index).ok()?;
    candidates.get(index).copied()
}

fn by_weight<'a>(candidates: &[&'a Worker], draw: u64) -> Option<&'a Worker> {
    let weight = |worker: &Worker| u64::from(worker.effective_weight());
    let total = candidates.iter().map(|worker| weight(worker)).sum();
    let mut left = below(total, draw);
    for worker in candidates {
        match left.checked_sub(weight(worker)) {
            Some(rest) => left = rest,
            None => return Some(worker),
        }
    }
    candidates.last().copied()
}

/// A number below `bound` from one that was drawn from all there are. All are alike but for one part in 2⁶⁴ / `bound`.
pub(super) fn below(bound: u64, draw: u64) -> u64 {
    let scaled = u128::from(draw) * u128::from(bound);
    u64::try_from(scaled >> 64).unwrap_or(0)
}

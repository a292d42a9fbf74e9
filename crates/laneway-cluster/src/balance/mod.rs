//! Which worker gets an attempt: the workers of a topic, and a strategy among them. Pure: chance comes in as a number.
//!
//! ```
//! use laneway_cluster::balance::{Balancer, Load, Mapping, Strategy, Worker};
//! use laneway_cluster::record::Instance;
//!
//! let worker = |number, name: &str| Worker {
//!     instance: Instance([number; 16]),
//!     name: name.to_owned(),
//!     weight: 1,
//!     load: Load::default(),
//! };
//! let alive = [worker(1, "red"), worker(2, "green"), worker(3, "blue")];
//!
//! let mapping = Mapping::Some(["red", "blue"].map(str::to_owned).into());
//! let candidates = mapping.candidates(&alive);
//! let mut balancer = Balancer::new(Strategy::RoundRobin);
//! let chosen: Vec<_> = (0..4).filter_map(|_| balancer.choose(&candidates, 0)).collect();
//! assert_eq!(chosen, [1, 3, 1, 3].map(|number| Instance([number; 16])));
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `mapping` | which workers a topic has |
//! | `strategy` | which of them is next |

mod mapping;
mod strategy;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use mapping::Mapping;
pub use strategy::{Balancer, Strategy};

use crate::record::Instance;

/// A worker that lives.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Which process it is.
    pub instance: Instance,
    /// What people call it: the same after a restart. Topics are mapped to names.
    pub name: String,
    /// How much it should get, next to others; 0 counts as 1.
    pub weight: u32,
    /// What it has reported.
    pub load: Load,
}

/// How busy a worker is, as it reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Messages that it holds.
    pub held: u64,
    /// How much of its processors is in use, from 0 to 1.
    pub cpu: f32,
    /// How much of its memory is in use, from 0 to 1.
    pub memory: f32,
}

/// Which workers a topic has, and how they share its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Which workers.
    pub mapping: Mapping,
    /// How they share.
    pub strategy: Strategy,
    /// How many were asked for, if the workers were drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drawn: Option<u32>,
}

impl Default for Placement {
    /// All workers, by weight.
    fn default() -> Self {
        Self {
            mapping: Mapping::All,
            strategy: Strategy::SmoothWeightedRoundRobin,
            drawn: None,
        }
    }
}

/// What a worker that is full still gets, so that it is seen when it recovers.
const LEAST_FREE: f64 = 0.05;

/// As many held messages as halve the weight of a worker.
const HALVING: f64 = 10_000.0;

/// The weight of an idle worker whose weight is 1.
const UNIT: f64 = 1_000.0;

impl Worker {
    /// How much it gets under the weighted strategies: its weight, less what its processors or its memory have no room for,
    /// whichever is scarcer, halved at ten thousand held messages, and never nothing. 1000 for an idle worker of weight 1.
    #[must_use]
    pub fn effective_weight(&self) -> u32 {
        let used = [self.load.cpu, self.load.memory]
            .into_iter()
            // What is not a number says nothing.
            .filter(|used| used.is_finite())
            .fold(0.0, f32::max);
        let free = (1.0 - f64::from(used)).clamp(LEAST_FREE, 1.0);
        let held = self.load.held as f64;
        let weight = UNIT * f64::from(self.weight.max(1)) * free / (1.0 + held / HALVING);
        // Saturates, and is at least 1.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float becomes the nearest number in range"
        )]
        let weight = weight.round() as u32;
        weight.max(1)
    }
}

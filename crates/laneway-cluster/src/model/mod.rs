//! The cluster as a model: every interleaving of two centers, two workers, a log and its clients within small bounds, with the
//! production code of `apply`, `owner` and `worker` in it.
//!
//! | module | what it is |
//! |---|---|
//! | `heal` | what a cluster without further faults does, step by step, until all is settled |
//! | `observe` | what is seen from outside, and what must never be seen |
//! | `record` | what the checker is given of a run |
//! | `scenario` | bounds, and where a run begins |
//! | `scenarios` | what is explored |
//! | `steps` | what can happen next |
//! | `tests` | what is found, with all rules and without each |
//! | `world` | the state |

mod heal;
mod observe;
mod record;
mod scenario;
mod scenarios;
mod steps;
mod tests;
mod world;

pub(crate) use record::{good_history, run_begins};

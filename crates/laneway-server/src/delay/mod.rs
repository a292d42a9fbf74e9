//! The delay service of this server: what is started, and what is counted.
//!
//! A message goes one way: `http` hands it to [`laneway_delay::Delays`], whose engine hands it to a sink when it is due:
//! [`laneway_delay::callback::Client`] for URLs, [`laneway::BusSink`] for topics of the bus. Both stand behind
//! `Metered`, which counts and changes nothing.
//!
//! | file | what it is |
//! |---|---|
//! | `outlet` | the ways out: the callback client and the bus |
//! | `service` | starts the ways out and the engine, on one machine; stops them |
//! | `metered` | a sink whose attempts are counted |
//! | `metrics` | what is counted |

mod metered;
mod metrics;
mod outlet;
mod service;

pub(crate) use metrics::Metrics;
pub(crate) use outlet::{Outlet, all_secrets, engine_options, secrets};
pub(crate) use service::Service;

//! Real servers for tests, benchmarks and fault runs.
//!
//! [`ensure()`] brings services up for this process and says what became of each; [`environment`]
//! makes the variables that hand them to a test process; [`release()`] lets go of them again.
//!
//! Servers belong to the workspace, not to the process that started them. The ledger (a file below
//! the target folder) says which processes they are, who uses them, and whether they are to stay up
//! (`services up`). Several programs share one set; the last one out stops what nobody keeps.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`], [`table`], [`progress`] | `cargo xtask services …`, what it shows, and what while it works |
//! | [`service`], [`shape`], [`outcome`] | which service, how many servers of it, and what came of asking for it |
//! | [`mod@ensure`], [`mod@release`] | what to reuse, replace, start and stop |
//! | [`server`], [`site`] | how each server is configured and started, and where |
//! | [`install`] | how missing programs are fetched, without touching the system |
//! | [`mod@probe`] | health checks in each server's own protocol |
//! | [`ledger`], [`process`], [`ports`], [`deadline`], [`interrupt`], [`files`], [`place`] | the tools |

mod cli;
mod deadline;
mod ensure;
mod files;
mod install;
mod interrupt;
mod ledger;
mod outcome;
mod place;
mod ports;
mod probe;
mod process;
pub(crate) mod progress;
mod release;
mod server;
mod service;
mod shape;
mod site;
mod table;

pub(crate) use cli::{ServicesArgs, run};
pub(crate) use ensure::ensure;
pub(crate) use outcome::{Outcome, Source, State, environment};
pub(crate) use release::{down, release};
pub(crate) use service::Service;
pub(crate) use shape::{NatsSync, Shape};

use release::{keep, release_interrupted};

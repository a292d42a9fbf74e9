//! Centers over a log in memory, with real workers in the same process.
//!
//! | module | what it is |
//! |---|---|
//! | `backups` | copies in a real Redis: wiped, killed, old, foreign, forged, restored |
//! | `basics` | submits, commands, retries, replays, lists |
//! | `crashes` | tasks that crash, views that are gone |
//! | `failures` | workers that die, refuse or come back |
//! | `judge` | a run, judged by the checker of the core |
//! | `memory_log` | the log: its faults, and what it holds |
//! | `placement` | which workers get the messages of a topic |
//! | `receiver` | where attempts go |
//! | `redis_server` | a real Redis of a test's own |
//! | `takeovers` | centers that die, freeze and give shards up |
//! | `trims` | a log that is trimmed under load |
//! | `world` | a cluster in one process |

mod backups;
mod basics;
mod crashes;
mod failures;
mod judge;
mod memory_log;
mod placement;
mod receiver;
#[path = "../../../laneway-backup/tests/support/server.rs"]
mod redis_server;
mod takeovers;
mod trims;
mod world;

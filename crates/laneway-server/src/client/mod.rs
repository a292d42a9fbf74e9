//! Commands that talk to a running server, or stand in for a receiver: `laneway delay`, `dead`, `cluster`, `topic` and `listen`.
//!
//! | file | what it is |
//! |---|---|
//! | `server` | one request, and what came back |
//! | `failed` | what went wrong with it, and the exit codes |
//! | `delay` | submit, extend, withdraw, get, list |
//! | `cluster` | processes and shards of a cluster |
//! | `topic` | which workers topics have |
//! | `dead` | list, replay, purge |
//! | `listen` | a receiver of callbacks, to try things out |
//! | `table` | answers for people |

mod cluster;
mod dead;
mod delay;
mod failed;
mod listen;
mod server;
mod table;
mod topic;

use std::path::Path;

use anyhow::Context;

pub(crate) use cluster::ClusterCommand;
pub(crate) use dead::DeadCommand;
pub(crate) use delay::DelayCommand;
pub(crate) use failed::Failed;
pub(crate) use listen::{Listen, listen};
use server::Answer;
pub(crate) use server::Connection;
pub(crate) use topic::TopicCommand;

/// Runs a command on a runtime of its own.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?
        .block_on(work)
}

/// `laneway delay …`
pub(crate) fn delay(command: DelayCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let as_json = command.connection().json;
    let result = block_on(delay::run(command, config));
    result.map_err(|error| Failed::from_any(error, as_json).into())
}

/// `laneway dead …`
pub(crate) fn dead(command: DeadCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let as_json = command.connection().json;
    let result = block_on(dead::run(command, config));
    result.map_err(|error| Failed::from_any(error, as_json).into())
}

/// `laneway cluster …`
pub(crate) fn cluster(command: ClusterCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let as_json = command.connection().json;
    let result = block_on(cluster::run(command, config));
    result.map_err(|error| Failed::from_any(error, as_json).into())
}

/// `laneway topic …`
pub(crate) fn topic(command: TopicCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let as_json = command.connection().json;
    let result = block_on(topic::run(command, config));
    result.map_err(|error| Failed::from_any(error, as_json).into())
}

/// Prints the answer: as it came, as people like it, or not at all.
fn show(
    connection: &Connection,
    answer: &Answer,
    for_people: impl FnOnce(&Answer) -> String,
) -> anyhow::Result<()> {
    if connection.quiet {
        return Ok(());
    }
    let text = if connection.json {
        format!("{}\n", answer.text.trim_end())
    } else {
        for_people(answer)
    };
    crate::print(&text)
}

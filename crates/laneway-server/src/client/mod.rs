//! Commands that talk to a running server: `laneway delay` and `laneway dead`.
//!
//! | file | what it is |
//! |---|---|
//! | `server` | one request, and what went wrong with it |
//! | `delay` | submit, extend, withdraw, get, list |
//! | `dead` | list, replay, purge |
//! | `table` | answers for people |

mod dead;
mod delay;
mod server;
mod table;

use anyhow::Context;

pub(crate) use dead::DeadCommand;
pub(crate) use delay::DelayCommand;
pub(crate) use server::Connection;

/// Runs a command on a runtime of its own.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?
        .block_on(work)
}

/// `laneway delay …`
pub(crate) fn delay(command: DelayCommand) -> anyhow::Result<()> {
    block_on(delay::run(command))
}

/// `laneway dead …`
pub(crate) fn dead(command: DeadCommand) -> anyhow::Result<()> {
    block_on(dead::run(command))
}

/// Prints the answer: as it came, or as people like it.
fn show(
    connection: &Connection,
    answer: &serde_json::Value,
    for_people: impl FnOnce(&serde_json::Value) -> String,
) -> anyhow::Result<()> {
    let text = if connection.json {
        format!("{answer}\n")
    } else {
        for_people(answer)
    };
    crate::print(&text)
}

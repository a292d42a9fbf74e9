//! Where the lives of a bus on disk take place.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::child::{self, Amount, Task};
use super::mount::Namespace;
use crate::life::{Life, program};

pub(super) struct Stage<'a> {
    /// Of the bus.
    pub(super) directory: &'a Path,
    /// What happened in all lives.
    pub(super) history: &'a Path,
    /// Where the file system of the directory is mounted.
    pub(super) namespace: Option<&'a Namespace>,
}

impl Stage<'_> {
    /// Starts a life.
    pub(super) fn begin(&self, task: Task, owner: u64, seed: u64) -> Result<Life> {
        self.start(task, owner, seed, None)
    }

    /// Starts a life that stores events, or counts them.
    pub(super) fn begin_with(&self, task: Task, owner: u64, amount: Amount) -> Result<Life> {
        self.start(task, owner, 0, Some(amount))
    }

    fn start(&self, task: Task, owner: u64, seed: u64, amount: Option<Amount>) -> Result<Life> {
        let program = program()?;
        let mut command = match self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        let (directory, history) = (self.directory.to_owned(), self.history.to_owned());
        let arguments = child::arguments(task, directory, history, owner, seed, amount);
        command.args(arguments);
        Life::begin(&mut command, owner)
    }

    /// Lets a life handle all that is left, and come to its end.
    pub(super) fn drain(&self, owner: u64, limit: Duration) -> Result<()> {
        let mut life = self.begin(Task::Drain, owner, 0)?;
        life.hear(child::DONE, limit)?;
        let status = life.end(limit)?;
        ensure!(status.success(), "the last life ended with {status}");
        Ok(())
    }
}

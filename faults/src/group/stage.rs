//! The processes of a fault run, and their history.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use laneway::testing::history::{self, History};

use super::child::{self, Task};
use super::story::Story;
use super::{Broker, Server};
use crate::life::{Life, program};

const READY_LIMIT: Duration = Duration::from_mins(3);
const DRAIN_LIMIT: Duration = Duration::from_mins(3);
const LEAVE_LIMIT: Duration = Duration::from_mins(3);

pub(super) struct Stage {
    url: String,
    file: PathBuf,
    history: History,
    lives: u64,
}

impl Stage {
    /// Around servers; `settings` is what comes after the `?` of the address.
    pub(super) fn new<B: Broker>(
        folder: &Path,
        servers: &[Server],
        settings: &str,
    ) -> Result<Self> {
        let addresses: Vec<String> = servers.iter().map(Server::address).collect();
        let file = folder.join("history");
        Ok(Self {
            url: format!("{}://{}?{settings}", B::SCHEME, addresses.join(",")),
            history: History::append_to(&file)?,
            file,
            lives: 0,
        })
    }

    /// Starts a process.
    pub(super) fn begin(&mut self, task: Task, seed: u64) -> Result<Life> {
        self.begin_as(|url, file, owner| {
            child::arguments(child::ARGUMENT, &task, url, file, owner, seed)
        })
    }

    /// Starts a process with arguments that are made of the address of the servers, the file of the history
    /// and the number of the life.
    pub(super) fn begin_as(
        &mut self,
        arguments: impl FnOnce(&str, PathBuf, u64) -> Vec<OsString>,
    ) -> Result<Life> {
        self.lives += 1;
        let arguments = arguments(&self.url, self.file.clone(), self.lives);
        Life::begin(Command::new(program()?).args(arguments), self.lives)
    }

    /// Starts a process, and waits until it does what it is to do.
    pub(super) fn begin_ready(&mut self, task: Task, seed: u64) -> Result<Life> {
        let mut life = self.begin(task, seed)?;
        life.hear(child::READY, READY_LIMIT)?;
        Ok(life)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    /// Where the history is.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Lets a member leave.
    pub(super) fn leave(mut member: Life) -> Result<()> {
        member.dismiss();
        member.hear(child::DONE, LEAVE_LIMIT)?;
        let status = member.end(LEAVE_LIMIT)?;
        ensure!(status.success(), "a member ended with {status}");
        Ok(())
    }

    /// Stops publishing, lets the members handle what is left, and everybody end.
    pub(super) fn end(self, mut publisher: Life, members: Vec<Life>) -> Result<Story> {
        publisher.dismiss();
        publisher
            .hear(child::DONE, DRAIN_LIMIT)
            .context("what is left is not handled")?;
        for member in members {
            Self::leave(member)?;
        }
        self.tell()
    }

    /// All that happened. Everybody has ended.
    pub(super) fn tell(self) -> Result<Story> {
        self.story()
    }

    /// All that happened so far.
    pub(super) fn story(&self) -> Result<Story> {
        let file = File::open(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        Ok(Story::new(history::read(BufReader::new(file))?))
    }
}

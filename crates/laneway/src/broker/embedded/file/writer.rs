//! What the store does in the thread of its [`Committer`](laneway_disk::Committer): group commit.
//!
//! Appends, positions and trims are committed with whatever else waits. Requests that are done alone are in
//! [`alone`](super::alone). Records are synced before their publishers are answered, and before readers see them; positions
//! and trims are not, unless they ask for it.

use std::collections::VecDeque;
use std::sync::Arc;

use laneway_disk::commit::{self, Durability, OpenError, Reopened, Turn};
use laneway_disk::{Directory, StoreError};
use tokio::runtime::Handle;

use super::Shared;
use super::alone::Then;
use super::batch::{Answer, Batch, Pending};
use super::engine::Engine;
use super::fault;
use super::recover::Recovered;
use super::request::{Request, Together};
use super::state::LogState;
use crate::broker::BrokerError;

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Where the store was opened, and publishers run.
    runtime: Handle,
    /// What is in memory for readers, the oldest first.
    cached: VecDeque<(Arc<LogState>, usize, u64)>,
    cached_size: u64,
}

/// A batch on its way.
#[derive(Default)]
pub(super) struct Underway {
    pending: Pending,
    /// What follows a request that is done alone.
    then: Option<Then>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            runtime: Handle::current(),
            cached: VecDeque::new(),
            cached_size: 0,
        }
    }

    fn write_together(
        &self,
        batch: &mut Batch<'_>,
        waiting: &mut VecDeque<Request>,
        turn: &mut Turn<'_>,
    ) {
        while batch.bytes() < self.shared.limits.batch
            && let Some(Request::Together(request)) =
                waiting.pop_front_if(|next| matches!(next, Request::Together(_)))
        {
            match request {
                Together::Append(append) if append.log.topic.is_removed() => {
                    let name = append.log.topic.name.clone();
                    let _ = append.ack.send(Err(BrokerError::UnknownTopic(name)));
                }
                Together::Append(append) if turn.is_short_of_room() => {
                    let full = self.shared.error(&StoreError::Full);
                    let _ = append.ack.send(Err(full));
                }
                Together::Append(append) => batch.append(append),
                Together::Save(save) => batch.save(save),
                Together::Trim(trim) => batch.trim(trim),
                Together::Sync(ack) => batch.tell_when_durable(ack),
            }
        }
    }

    /// Answers publishers. Every answer from this thread may wake a thread of the runtime that takes
    /// this one's place for the sake of one publisher, so several are given from within.
    fn answer(&self, answers: Vec<Answer>) {
        let alone = answers.len() <= 1;
        let give = move || answers.into_iter().for_each(Answer::give);
        if alone {
            give();
        } else {
            self.runtime.spawn(async move { give() });
        }
    }

    /// Lets readers see what is durable, answers publishers, and forgets the oldest records that are in memory.
    fn publish(&mut self, pending: Pending) {
        let answers = pending.durable(|log, count, size| {
            self.cached_size += size;
            self.cached.push_back((log.clone(), count, size));
        });
        self.answer(answers);
        while self.cached_size > self.shared.limits.cache
            && let Some((log, count, size)) = self.cached.pop_front()
        {
            self.cached_size -= size;
            log.lock().forget(count);
        }
    }
}

impl commit::Writer for Writer {
    type Engine = Engine;
    type Request = Request;
    type Pending = Underway;
    type Found = Recovered;

    fn open(&self, directory: &mut Directory) -> Result<Reopened<Engine, Recovered>, OpenError> {
        match super::open_engine(directory, &self.shared.limits) {
            Ok((engine, found)) => Ok(Reopened {
                commit: found.commit,
                engine,
                found,
            }),
            Err(error) if fault::passes(&error) => Err(OpenError::Passes(error.to_string())),
            Err(error) => Err(OpenError::Stays(error.to_string())),
        }
    }

    fn adopt(&mut self, found: Recovered) {
        self.cached.clear();
        self.cached_size = 0;
        self.shared.topics.lock().adopt(found);
    }

    fn mark(&self, engine: &Engine, commit: u64) -> fjall::Result<()> {
        let mut batch = Batch::new(engine, self.shared.identity, commit);
        batch.sync();
        batch.commit(self.shared.commits.disk()).1
    }

    fn write(
        &mut self,
        engine: &Engine,
        waiting: &mut VecDeque<Request>,
        turn: &mut Turn<'_>,
    ) -> commit::Batch<Underway> {
        let mut batch = Batch::new(engine, self.shared.identity, turn.commit);
        let mut then = None;
        match waiting.pop_front() {
            Some(Request::Alone(request)) => then = self.write_alone(engine, &mut batch, request),
            Some(request) => {
                waiting.push_front(request);
                self.write_together(&mut batch, waiting, turn);
            }
            None => {}
        }
        let durability = match (batch.must_sync(), batch.is_empty()) {
            (true, _) => Durability::Synced,
            (false, false) => Durability::Written,
            (false, true) => Durability::Nothing,
        };
        let (pending, result) = batch.commit(self.shared.commits.disk());
        commit::Batch {
            pending: Underway { pending, then },
            durability,
            result,
        }
    }

    fn written(&mut self, underway: &mut Underway) {
        underway.pending.written();
    }

    fn committed(&mut self, underway: Underway, waiting: &mut VecDeque<Request>) -> usize {
        let publishers = underway.pending.publishers();
        self.publish(underway.pending);
        if let Some(then) = underway.then {
            self.finish_alone(then, waiting);
        }
        publishers
    }

    fn refused(&mut self, underway: Underway, failure: &StoreError, _: bool) -> Vec<Request> {
        underway.pending.refuse(|| self.shared.error(failure));
        if let Some(then) = underway.then {
            then.refuse(self.shared.error(failure));
        }
        Vec::new()
    }

    fn refuse(&mut self, request: Request, failure: &StoreError) -> Option<Request> {
        request.refuse(self.shared.error(failure));
        None
    }
}

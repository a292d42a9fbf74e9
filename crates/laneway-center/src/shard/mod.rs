//! One shard on this center: its view, the rules of its owner, and everything that they wait for.
//!
//! A single task has the shard. What it hears (records of the log, requests, frames of workers, answers of the broker) comes over
//! channels, and what it decides goes out over channels. So a decision is made against exactly what was applied.
//!
//! After each wake-up it begins what is due, puts what was decided into facts, and sends these, if no append is under
//! way: one append at a time, with all facts that came together meanwhile.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `announce` | from assigned to owning, and back |
//! | `attempts` | what is due, and what became of attempts |
//! | `copy` | the copy of an owned shard in the backup |
//! | `decisions` | does what the owner decided |
//! | `event` | what the task hears from outside |
//! | `open` | the view: opened, verified, built again |
//! | `requests` | callers, and who waits for which answer |
//! | `restore` | a view from the backup, where there is none |
//! | `supervise` | starts the task again, until it has crashed too often |
//! | `upkeep` | forgets, trims, scans |

mod announce;
mod attempts;
mod copy;
mod decisions;
mod event;
mod open;
mod requests;
mod restore;
mod supervise;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use laneway_cluster::apply::{Applied, Shard, Stop};
use laneway_cluster::owner::{ShardOwner, Standing};
use laneway_cluster::record::{Change, Record, Row};
use laneway_delay::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use event::{Assigned, Event, IntakeError, Mailbox};
pub(crate) use open::{OpenError, asked, directory, from_log};
pub(crate) use supervise::supervise;

use crate::log::{LogError, Records};
use crate::rows::Rows;
use crate::shared::Shared;
use crate::stats::{count, count_many};
use announce::Announcing;
use attempts::Attempts;
use copy::Copied;
use event::Inner;
use requests::Waiting;
use upkeep::Upkeep;

/// The longest sleep: clocks can be set, and nothing may depend on having been woken.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The view is written so often.
const COMMIT: Duration = Duration::from_secs(1);

/// How many events of the mailbox are taken before something else gets its turn.
const EVENTS: usize = 512;

/// Waits between tries of the log.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Why the task of a shard ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The view does not belong to the log: it has to be set aside.
    OtherLog,
    /// Nothing is to be done any more: the center stops.
    Stopped,
    /// The view on disk failed.
    View(String),
    /// The shard can go no further here.
    Halted(Stop),
}

impl Ending {
    fn view(error: impl std::fmt::Display) -> Self {
        Self::View(error.to_string())
    }
}

/// The task of a shard.
pub(crate) struct Task {
    shared: Arc<Shared>,
    number: u32,
    shard: Shard<Rows>,
    owner: ShardOwner,
    announcing: Announcing,
    attempts: Attempts,
    waiting: Waiting,
    upkeep: Upkeep,
    copied: Copied,
    /// Facts in order, that wait for the append that is under way.
    to_append: Vec<Bytes>,
    is_appending: bool,
    append_after: Option<Instant>,
    append_wait: Duration,
    /// Whether records come.
    is_following: bool,
    follow_after: Option<Instant>,
    follow_wait: Duration,
    inner: mpsc::UnboundedSender<Inner>,
    heard: mpsc::UnboundedReceiver<Inner>,
    followed: Option<mpsc::Receiver<Result<Records, LogError>>>,
    committed: Instant,
    /// Ends with the task.
    background: JoinSet<()>,
}

impl Task {
    fn new(shared: Arc<Shared>, number: u32, opened: Shard<Rows>) -> Self {
        let (inner, heard) = mpsc::unbounded_channel();
        let owner = ShardOwner::new(shared.settings.owner);
        let upkeep = Upkeep::new(&shared.settings);
        Self {
            shared,
            number,
            shard: opened,
            owner,
            announcing: Announcing::default(),
            attempts: Attempts::default(),
            waiting: Waiting::default(),
            upkeep,
            copied: Copied::default(),
            to_append: Vec::new(),
            is_appending: false,
            append_after: None,
            append_wait: WAITS.0,
            is_following: false,
            follow_after: None,
            follow_wait: WAITS.0,
            inner,
            heard,
            followed: None,
            committed: Instant::now(),
            background: JoinSet::new(),
        }
    }

    /// Runs until it can go no further, or until the center stops.
    async fn run(
        &mut self,
        mailbox: &mut mpsc::Receiver<Event>,
        assigned: &mut Assigned,
    ) -> Ending {
        self.hear_assignment(assigned);
        self.publish();
        loop {
            let wait = self.next_wake();
            let may_take = self.may_take();
            let woken = tokio::select! {
                biased;
                Some(inner) = self.heard.recv() => self.hear(inner),
                records = next(&mut self.followed) => self.read(records),
                event = mailbox.recv(), if may_take => {
                    let Some(event) = event else { return Ending::Stopped };
                    self.take(event);
                    Ok(())
                }
                changed = assigned.changed() => {
                    if changed.is_err() {
                        return Ending::Stopped;
                    }
                    self.hear_assignment(assigned);
                    Ok(())
                }
                () = sleep(wait) => Ok(()),
            };
            if let Err(ending) = woken {
                return ending;
            }
            for _ in 0..EVENTS {
                if !self.may_take() {
                    break;
                }
                let Ok(event) = mailbox.try_recv() else { break };
                self.take(event);
            }
            if let Err(ending) = self.step() {
                return ending;
            }
        }
    }

    /// Does all that can be done now.
    fn step(&mut self) -> Result<(), Ending> {
        self.follow_again();
        self.bring_up();
        self.release_if_drained();
        self.begin_due();
        self.keep_up();
        self.keep_copy();
        self.commit()?;
        self.flush();
        self.start_append();
        self.publish();
        while self.background.try_join_next().is_some() {}
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn is_owning(&self) -> bool {
        matches!(self.owner.standing(), Standing::Owning { .. })
    }

    fn epoch(&self) -> Option<u64> {
        match self.owner.standing() {
            Standing::Owning { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    fn next_wake(&self) -> Duration {
        let now = Instant::now();
        let instants = [
            self.append_after,
            self.follow_after,
            self.announcing.next(),
            Some(self.upkeep.next()),
        ];
        let instants = instants.into_iter().flatten();
        let soonest = instants.map(|at| at.saturating_duration_since(now)).min();
        let due = self.due_in();
        let wait = soonest.into_iter().chain(due).min();
        wait.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)
    }

    /// Records of the log.
    fn read(&mut self, records: Option<Result<Records, LogError>>) -> Result<(), Ending> {
        match records {
            Some(Ok(records)) => {
                self.follow_wait = WAITS.0;
                for chunk in records.chunks(self.shared.settings.batch.max(1)) {
                    self.apply(chunk)?;
                }
                Ok(())
            }
            Some(Err(error)) => {
                tracing::warn!(shard = self.number, %error, "reading the log of a shard failed, retrying");
                self.lose_follower();
                Ok(())
            }
            None => {
                self.lose_follower();
                Ok(())
            }
        }
    }

    fn apply(&mut self, records: &[(u64, Bytes)]) -> Result<(), Ending> {
        for (offset, bytes) in records {
            #[cfg(test)]
            self.shared.plant(self.number, bytes);
            let applied = match self.shard.apply(*offset, bytes) {
                Ok(applied) => applied,
                Err(stop) => {
                    return Err(Ending::Halted(stop));
                }
            };
            // Before anything is done because of rows that could not be read.
            if let Some(error) = self.shard.table().view.failure() {
                return Err(Ending::view(error));
            }
            self.passed(*offset, bytes.len());
            let was_owning = self.is_owning();
            self.rows_changed();
            let now = self.now();
            let decisions = self.owner.read(&self.shard, bytes, &applied, now);
            if self.is_owning() && !was_owning {
                self.became_owner();
            }
            self.note_lost_begins(bytes, &applied);
            self.decide(decisions);
            if was_owning && !self.is_owning() {
                self.stepped_down();
            }
        }
        self.note_copy();
        count_many(&self.shared.counters.applied, records.len() as u64);
        self.commit()
    }

    /// Writes the view, if it is time to.
    fn commit(&mut self) -> Result<(), Ending> {
        let view = &self.shard.table().view;
        if self.committed.elapsed() < COMMIT && !view.wants_commit() {
            return Ok(());
        }
        self.committed = Instant::now();
        view.commit(self.shard.head()).map_err(Ending::view)?;
        #[cfg(test)]
        self.shared.states[self.number as usize]
            .committed
            .store(self.shard.head().next, Relaxed);
        Ok(())
    }

    /// Begun attempts that lost against another change of their message are looked at again.
    fn note_lost_begins(&mut self, bytes: &Bytes, applied: &Applied) {
        let Applied::Fact { counted } = applied else {
            return;
        };
        if counted.iter().all(|counts| *counts) || !self.is_owning() {
            return;
        }
        let Ok(Record::Fact(fact)) = Record::decode(bytes) else {
            return;
        };
        for (row, counts) in fact.rows.iter().zip(counted) {
            if let Row::Message(row) = row
                && let Change::Begun { .. } = row.change
                && !counts
            {
                self.begin_lost(&row.id);
            }
        }
    }

    /// Puts what was decided into facts, if no append is under way.
    fn flush(&mut self) {
        if self.is_appending || !self.to_append.is_empty() {
            return;
        }
        let decisions = self.owner.flush(&self.shard);
        self.decide(decisions);
    }

    fn start_append(&mut self) {
        let is_early = self.append_after.is_some_and(|at| at > Instant::now());
        if self.is_appending || self.to_append.is_empty() || is_early {
            return;
        }
        self.append_after = None;
        self.is_appending = true;
        let records = std::mem::take(&mut self.to_append);
        let appended = records.len() as u64;
        let (shared, number, inner) = (self.shared.clone(), self.number, self.inner.clone());
        self.background.spawn(async move {
            let appending = shared.log.append(number, records);
            let appended = match timeout(shared.settings.append_within, appending).await {
                Ok(Ok(())) => {
                    count_many(&shared.counters.appended, appended);
                    Ok(())
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(LogError("no answer in time".to_owned())),
            };
            let _ = inner.send(Inner::Appended(appended));
        });
    }

    fn appended(&mut self, result: Result<(), LogError>) {
        self.is_appending = false;
        match result {
            Ok(()) => self.append_wait = WAITS.0,
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "an append to the log of a shard has no answer, sending it again");
                count(&self.shared.counters.unknown_appends);
                self.append_after = Some(Instant::now() + self.append_wait);
                self.append_wait = (self.append_wait * 2).min(WAITS.1);
                // All that was not read back, the frozen ones that were never sent among them.
                self.to_append.clear();
                let again = self.owner.append_unknown(&self.shard, self.now());
                self.decide(again);
            }
        }
    }

    fn hear(&mut self, inner: Inner) -> Result<(), Ending> {
        match inner {
            Inner::Appended(result) => {
                self.appended(result);
                Ok(())
            }
            Inner::Checked(checked) => self.checked(checked),
            Inner::Trimmed => {
                count(&self.shared.counters.trims);
                Ok(())
            }
        }
    }

    /// Tells others how the shard is doing.
    fn publish(&self) {
        let head = self.shard.head();
        let state = &self.shared.states[self.number as usize];
        let is_owner = self.is_owning();
        if state.is_owner.swap(is_owner, Relaxed) != is_owner {
            let owned = &self.shared.counters.owned;
            if is_owner {
                owned.fetch_add(1, Relaxed);
            } else {
                owned.fetch_sub(1, Relaxed);
            }
        }
        state
            .is_assigned
            .store(self.announcing.is_assigned, Relaxed);
        state.epoch.store(head.epoch, Relaxed);
        state.applied.store(head.next, Relaxed);
        state.rows.store(head.rows, Relaxed);
        state.copy.note(self.copied.progress());
    }
}

impl Drop for Task {
    /// The credit of attempts that were not begun goes back, however the task ended.
    fn drop(&mut self) {
        self.forget_attempts();
    }
}

async fn next(
    followed: &mut Option<mpsc::Receiver<Result<Records, LogError>>>,
) -> Option<Result<Records, LogError>> {
    match followed {
        Some(followed) => followed.recv().await,
        None => std::future::pending().await,
    }
}

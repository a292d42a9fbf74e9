//! What is due, and what became of attempts.
//!
//! A message that is due is in one of these places, as long as this center owns its shard:
//!
//! | place | until |
//! |---|---|
//! | [`Near`] | its attempt is begun |
//! | `beginning` | the begun attempt is read back, and counts or does not |
//! | `running` | its outcome is in the log, it is disclaimed, or its worker is dead |
//! | `held` | the worker that an earlier owner gave it to has answered, or is dead |
//!
//! [`Task::reconsider`] puts a message where it belongs, from its row. So a message is lost from them only by a mistake, and the
//! scan of the state finds it then.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use laneway_cluster::apply::{Kept, Table};
use laneway_cluster::owner::{Outcome, Request};
use laneway_cluster::record::{Instance, State};
use laneway_cluster::worker::Status;
use laneway_delay::{MessageId, Timestamp};
use laneway_rpc::convert::{self, Asked};
use laneway_rpc::proto::{self, to_worker::Frame};
use tokio::time::Instant;

use super::Task;
use crate::near::Near;
use crate::workers::Reached;

/// The most messages that are loaded from the view at once.
const PAGE: usize = 4_096;

/// So many of these are looked at in one scan.
const PAGES: usize = 4;

/// So many messages without a worker end a round.
const BLOCKED: usize = 256;

/// While workers of other topics have room, messages without a worker are looked at again after this, or after the longer wait
/// where there are many: what is due behind them does not wait for their workers.
const BLOCKED_WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// A message that so many workers have refused waits
const REFUSALS: usize = 3;

/// for this long.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// A worker that gives no answer is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A worker that is not there yet is waited for so long before a message is begun anew.
const EXPECT: Duration = Duration::from_secs(3);

/// An attempt that is not read back for so long was perhaps never begun. To begin it again is harmless: the owner knows.
const STUCK: Duration = Duration::from_secs(15);

/// Where due messages are.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    near: Near,
    beginning: HashMap<MessageId, Beginning>,
    running: BTreeMap<(MessageId, u32), Running>,
    held: HashMap<MessageId, Held>,
    /// Messages whose last attempt had no answer, as its worker told this owner: there is nothing to ask for.
    unknown: HashMap<MessageId, u32>,
    refusals: HashMap<MessageId, Vec<Instance>>,
    last_round: Option<Instant>,
    /// Where the next scan of due messages goes on.
    scanned: Option<(Timestamp, MessageId)>,
}

/// An attempt that a worker was chosen for.
#[derive(Debug)]
struct Beginning {
    worker: Instance,
    since: Instant,
    /// What is to be sent.
    bytes: u64,
}

/// An attempt that this owner gave to a worker.
#[derive(Debug)]
struct Running {
    worker: Instance,
    since: Instant,
}

/// A message that waits for what the worker of an earlier owner says.
#[derive(Debug)]
struct Held {
    attempt: u32,
    worker: Instance,
    since: Instant,
    asked: Option<Instant>,
}

impl Held {
    /// For how long its worker has not been asked.
    fn waits(&self) -> Duration {
        self.asked.unwrap_or(self.since).elapsed()
    }
}

impl Attempts {
    /// Forgets all. The workers of attempts that were not begun after all, and how many bytes each has.
    pub(super) fn reset(&mut self) -> Vec<(Instance, u64)> {
        let before = std::mem::take(self);
        let beginning = before.beginning.into_values();
        beginning.map(|it| (it.worker, it.bytes)).collect()
    }

    fn begins(&mut self, id: &MessageId, worker: Instance, bytes: u64) {
        let beginning = Beginning {
            worker,
            since: Instant::now(),
            bytes,
        };
        self.beginning.insert(id.clone(), beginning);
    }

    pub(super) fn given(&mut self, id: &MessageId, attempt: u32, worker: Instance) {
        self.beginning.remove(id);
        self.unknown.remove(id);
        let since = Instant::now();
        let running = Running { worker, since };
        self.running.insert((id.clone(), attempt), running);
    }

    pub(super) fn settled(&mut self, id: &MessageId, attempt: u32) {
        self.running.remove(&(id.clone(), attempt));
        self.refusals.remove(id);
        if self
            .held
            .get(id)
            .is_some_and(|held| held.attempt == attempt)
        {
            self.held.remove(id);
        }
    }

    fn is_under_way(&self, id: &MessageId, attempts: u32) -> bool {
        self.beginning.contains_key(id)
            || self.held.contains_key(id)
            || self.running.contains_key(&(id.clone(), attempts))
    }

    /// The row of a message has changed: attempts that are not in doubt any more are not under way.
    fn follow(&mut self, id: &MessageId, row: Option<&Kept>) {
        let doubts = row.map(|row| &row.image.doubts);
        let is_open = |attempt: u32| doubts.is_some_and(|doubts| doubts.contains_key(&attempt));
        let from = (id.clone(), 0);
        let to = (id.clone(), u32::MAX);
        let over: Vec<u32> = self
            .running
            .range(from..=to)
            .map(|((_, attempt), _)| *attempt)
            .filter(|attempt| !is_open(*attempt))
            .collect();
        for attempt in over {
            self.running.remove(&(id.clone(), attempt));
        }
        if self.held.get(id).is_some_and(|held| !is_open(held.attempt)) {
            self.held.remove(id);
        }
    }
}

impl Task {
    /// Rows have changed.
    pub(super) fn rows_changed(&mut self) {
        let changed = self.shard.table().take_changed();
        if !self.is_owning() {
            return;
        }
        for (id, row) in changed {
            self.attempts.follow(&id, row.as_deref());
            self.place(&id, row.as_deref());
            self.copied.change(id, row);
        }
    }

    /// Puts a message where it belongs.
    pub(super) fn reconsider(&mut self, id: &MessageId) {
        let row = self.shard.table().get(id);
        self.place(id, row.as_deref());
    }

    fn place(&mut self, id: &MessageId, row: Option<&Kept>) {
        let attempts = &mut self.attempts;
        let image = row.map(|row| &row.image);
        match image.filter(|image| image.state == State::Scheduled) {
            Some(image) if !attempts.is_under_way(id, image.attempts) => {
                attempts.near.note(image.next, id);
            }
            Some(_) => attempts.near.remove(id),
            None => {
                attempts.near.remove(id);
                attempts.held.remove(id);
                attempts.unknown.remove(id);
                attempts.refusals.remove(id);
            }
        }
    }

    /// An attempt was not begun after all: its message had changed.
    pub(super) fn begin_lost(&mut self, id: &MessageId) {
        if let Some(beginning) = self.attempts.beginning.remove(id) {
            self.shared
                .workers
                .give_back(beginning.worker, beginning.bytes);
        }
        self.reconsider(id);
    }

    /// All due messages are looked at anew.
    pub(super) fn forget_attempts(&mut self) {
        for (worker, bytes) in self.attempts.reset() {
            self.shared.workers.give_back(worker, bytes);
        }
    }

    /// When the next attempt has to be begun.
    pub(super) fn due_in(&self) -> Option<Duration> {
        if !self.is_owning() || !self.announcing.is_assigned {
            return None;
        }
        let first = self.attempts.near.first()?;
        let ahead = self.shared.settings.owner.begin_ahead;
        let now = self.shared.workers.begin_now() + ahead;
        let tick = self.shared.settings.tick;
        // A round at most every tick, so that one fact carries what comes together.
        let pause = self
            .attempts
            .last_round
            .map_or(Duration::ZERO, |last| tick.saturating_sub(last.elapsed()));
        Some(first.since(now).max(pause))
    }

    /// Begins what is due.
    pub(super) fn begin_due(&mut self) {
        if !self.is_owning() || !self.announcing.is_assigned || self.upkeep.is_pausing() {
            return;
        }
        self.load();
        if self.due_in().is_none_or(|wait| !wait.is_zero()) {
            return;
        }
        self.attempts.last_round = Some(Instant::now());
        let now = self.shared.workers.begin_now();
        let until = now + self.shared.settings.owner.begin_ahead;
        let mut blocked = Vec::new();
        while let Some((time, id)) = self.attempts.near.pop(until) {
            if self.begin(&id, now) {
                continue;
            }
            if !self.shared.workers.any_room() {
                self.attempts.near.put(time, id);
                break;
            }
            blocked.push(id);
            if blocked.len() >= BLOCKED {
                break;
            }
        }
        let wait = if blocked.len() < BLOCKED {
            BLOCKED_WAITS.0
        } else {
            BLOCKED_WAITS.1
        };
        for id in blocked {
            self.attempts.near.put(until + wait, id);
        }
    }

    /// Begins the next attempt of a message, or asks first what became of the last one. `false`: no worker has room.
    fn begin(&mut self, id: &MessageId, now: Timestamp) -> bool {
        let Some(row) = self.shard.table().get(id) else {
            return true;
        };
        let image = &row.image;
        if image.state != State::Scheduled || self.attempts.is_under_way(id, image.attempts) {
            return true;
        }
        if self.hold(id, &row) {
            return true;
        }
        let refusals = self.attempts.refusals.get(id);
        let refusals = refusals.map_or(&[][..], Vec::as_slice);
        let bytes = image.body.len() as u64;
        let worker = self.shared.workers.choose(&image.topic, bytes, refusals);
        let Some(worker) = worker else {
            // All that there are have refused: they are asked again.
            if !refusals.is_empty() {
                self.attempts.refusals.remove(id);
            }
            return false;
        };
        self.begin_with(id, worker, bytes, now);
        true
    }

    /// Begins the next attempt of a message with the worker that was chosen for it. What the owner does not begin now is nowhere
    /// then, and the scan of the state finds it.
    fn begin_with(&mut self, id: &MessageId, worker: Instance, bytes: u64, now: Timestamp) {
        let was_beginning = self.owner.is_beginning(id);
        let decisions = self.owner.begin(&self.shard, id, worker, now);
        if self.owner.is_beginning(id) && !was_beginning {
            self.attempts.begins(id, worker, bytes);
        } else {
            self.shared.workers.give_back(worker, bytes);
        }
        self.decide(decisions);
    }

    /// Holds a message back whose last attempt an earlier owner gave to a worker that may live, and asks the worker. `false`: there
    /// is no worker to ask.
    fn hold(&mut self, id: &MessageId, row: &Kept) -> bool {
        let Some(epoch) = self.epoch() else {
            return false;
        };
        let attempt = row.image.attempts;
        let Some(doubt) = row.image.doubts.get(&attempt) else {
            return false;
        };
        if self.attempts.unknown.get(id) == Some(&attempt) {
            return false;
        }
        // What this owner gave away and has here no more is unknown: its worker is dead, or said so.
        if doubt.epoch >= epoch || self.shared.workers.reached(doubt.worker) == Reached::Gone {
            return false;
        }
        let held = Held {
            attempt,
            worker: doubt.worker,
            since: Instant::now(),
            asked: None,
        };
        self.attempts.held.insert(id.clone(), held);
        self.ask(id, attempt, doubt.worker);
        true
    }

    /// Asks a worker what became of an attempt. Answers come as events; where none comes it is asked again.
    fn ask(&mut self, id: &MessageId, attempt: u32, worker: Instance) {
        let Some(epoch) = self.epoch() else { return };
        let asked = Asked {
            shard: self.number,
            epoch,
            id: id.clone(),
            attempt,
        };
        let frame = Frame::Ask(proto::Ask::from(&asked));
        if self.shared.workers.send(worker, frame)
            && let Some(held) = self.attempts.held.get_mut(id)
        {
            held.asked = Some(Instant::now());
        }
    }

    /// Messages that are due within the horizon are loaded from the view, a page at a time.
    fn load(&mut self) {
        let settings = &self.shared.settings;
        let now = self.shared.workers.begin_now();
        let soon = now + settings.horizon / 2;
        if self.attempts.near.reaches(soon) || self.attempts.near.len() >= settings.near {
            return;
        }
        let until = now + settings.horizon;
        let from = self.attempts.near.loaded_to();
        let page = match self.shard.table().view.due(from.as_ref(), until, PAGE) {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(shard = self.number, %error, "the due index of a view cannot be read, retrying");
                return;
            }
        };
        if page.len() < PAGE {
            self.attempts.near.loaded_up_to(until, None);
        } else if let Some((time, id)) = page.last() {
            self.attempts.near.loaded_up_to(*time, Some(id.clone()));
        }
        for (_, id) in page {
            self.reconsider(&id);
        }
        let most = self.shared.settings.near.saturating_mul(2);
        self.attempts.near.shrink(most);
    }

    /// Looks at the state itself: what no event told of, and what was not answered.
    pub(super) fn scan(&mut self) {
        if !self.is_owning() {
            return;
        }
        let workers = self.shared.workers.clone();
        let running = self.attempts.running.iter();
        let running: Vec<_> = running
            .map(|((id, attempt), running)| (id.clone(), *attempt, running.worker, running.since))
            .collect();
        let mut dead = HashSet::new();
        for (id, attempt, worker, since) in running {
            match workers.reached(worker) {
                Reached::Gone => {
                    dead.insert(worker);
                }
                // It was taken for dead while its attempt was on the way into the log, or that was not heard here.
                Reached::Expected if !workers.knows(worker) => {
                    dead.insert(worker);
                }
                Reached::Connected if since.elapsed() >= self.shared.settings.scan => {
                    self.ask(&id, attempt, worker);
                }
                Reached::Connected | Reached::Expected => {}
            }
        }
        for worker in dead {
            self.worker_gone(worker);
        }
        let beginning = self.attempts.beginning.iter();
        let stuck = beginning.filter(|(_, beginning)| beginning.since.elapsed() >= STUCK);
        let stuck: Vec<_> = stuck.map(|(id, _)| id.clone()).collect();
        for id in stuck {
            self.begin_lost(&id);
        }
        self.scan_due();
    }

    /// Due messages that are nowhere: a few pages of them, and the next ones when it is called again. Where millions are overdue,
    /// because no worker is there, a look at all of them would leave no time for anything else.
    fn scan_due(&mut self) {
        let now = self.shared.workers.begin_now();
        for _ in 0..PAGES {
            let after = self.attempts.scanned.take();
            let Ok(page) = self.shard.table().view.due(after.as_ref(), now, PAGE) else {
                return;
            };
            for (_, id) in &page {
                self.reconsider(id);
            }
            if page.len() < PAGE {
                return;
            }
            self.attempts.scanned = page.last().cloned();
        }
    }

    /// Asks again about messages that are held back, and lets those go whose worker does not come.
    pub(super) fn ask_again(&mut self) {
        // A shard that was revoked begins nothing: its next owner asks.
        if self.attempts.held.is_empty() || !self.is_owning() || !self.announcing.is_assigned {
            return;
        }
        let workers = self.shared.workers.clone();
        let mut again = Vec::new();
        let mut free = Vec::new();
        for (id, held) in &self.attempts.held {
            match workers.reached(held.worker) {
                Reached::Gone => free.push(id.clone()),
                // Listed, and not there; perhaps it was, and was taken for dead since it was asked.
                Reached::Expected if !workers.knows(held.worker) && held.waits() >= EXPECT => {
                    free.push(id.clone());
                }
                Reached::Expected => {}
                Reached::Connected => {
                    if held.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                        again.push((id.clone(), held.attempt, held.worker));
                    }
                }
            }
        }
        for id in free {
            self.begin_anew(&id);
        }
        for (id, attempt, worker) in again {
            self.ask(&id, attempt, worker);
        }
    }

    /// A message whose last attempt has no outcome is begun anew, whatever became of that.
    fn begin_anew(&mut self, id: &MessageId) {
        self.attempts.held.remove(id);
        let Some(row) = self.shard.table().get(id) else {
            return;
        };
        let bytes = row.image.body.len() as u64;
        let Some(worker) = self.shared.workers.choose(&row.image.topic, bytes, &[]) else {
            // The next round asks whether its worker can be reached now.
            return self.reconsider(id);
        };
        self.attempts.near.remove(id);
        let now = self.shared.workers.begin_now();
        self.begin_with(id, worker, bytes, now);
    }

    /// A worker says how an attempt ended. What is not owned here is offered to the owner, too.
    pub(super) fn outcome(&mut self, worker: Instance, outcome: proto::Outcome) {
        if !self.is_owning() {
            return;
        }
        let ending = outcome
            .ending
            .as_ref()
            .and_then(|ending| ending.how.as_ref());
        let waits = match ending {
            Some(proto::ending::How::Delivered(_)) => Vec::new(),
            _ => self.waits(&outcome.id),
        };
        match convert::settle(worker, outcome, waits) {
            Ok(request) => self.settle(request),
            Err(invalid) => {
                tracing::warn!(shard = self.number, ?worker, %invalid, "an outcome cannot be read");
            }
        }
    }

    fn settle(&mut self, request: Request) {
        let now = self.shared.workers.due_now();
        let decisions = self.owner.request(&self.shard, request, now);
        self.decide(decisions);
    }

    /// The waits between the attempts of a message.
    fn waits(&self, id: &str) -> Vec<Duration> {
        let Some(row) = MessageId::new(id)
            .ok()
            .and_then(|id| self.shard.table().get(&id))
        else {
            return Vec::new();
        };
        let own = convert::parts(row.image.body.clone()).ok();
        let own = own.and_then(|parts| parts.retry);
        let schedule = own.unwrap_or_else(|| self.shared.topics.waits(&row.image.topic));
        schedule.waits().to_vec()
    }

    /// A message whose content cannot be read will never be delivered.
    pub(super) fn fail_unreadable(
        &mut self,
        worker: Instance,
        id: MessageId,
        attempt: u32,
        problem: &str,
    ) {
        let outcome = Outcome::Failed {
            reason: format!("its content cannot be read: {problem}"),
            after: Duration::ZERO,
            is_final: true,
        };
        self.settle(Request::Outcome {
            worker,
            id,
            attempt,
            outcome,
            waits: Vec::new(),
        });
    }

    /// A worker answers what became of an attempt.
    pub(super) fn status(&mut self, worker: Instance, status: proto::Status) {
        let (asked, status) = match <(Asked, Status)>::try_from(status) {
            Ok(status) => status,
            Err(invalid) => {
                tracing::warn!(shard = self.number, ?worker, %invalid, "the answer of a worker cannot be read");
                return;
            }
        };
        if Some(asked.epoch) != self.epoch() {
            return;
        }
        let Asked { id, attempt, .. } = asked;
        match status {
            Status::Disclaimed => self.disclaimed(worker, id, attempt),
            // It waited for its next attempt already, if that was logged; else its worker offers the outcome, too.
            Status::Ended(Outcome::Unknown) if self.attempts.held.contains_key(&id) => {
                self.attempts.held.remove(&id);
                self.attempts.unknown.insert(id.clone(), attempt);
                self.reconsider(&id);
            }
            Status::Ended(outcome) => {
                let waits = self.waits(id.as_str());
                self.settle(Request::Outcome {
                    worker,
                    id,
                    attempt,
                    outcome,
                    waits,
                });
            }
            // Its outcome will be told.
            Status::Runs => {
                if let Some(held) = self.attempts.held.get_mut(&id) {
                    held.asked = Some(Instant::now() + self.shared.settings.scan);
                }
            }
            // It has heard of a later owner, and so will this center.
            Status::Refused => {}
        }
    }

    /// A worker has not started an attempt, and will not.
    fn disclaimed(&mut self, worker: Instance, id: MessageId, attempt: u32) {
        let Some(epoch) = self.epoch() else { return };
        self.request(Request::Disclaim {
            worker,
            epoch,
            id,
            attempt,
        });
    }

    /// A worker did not take a go: another one gets the message.
    pub(super) fn refused(&mut self, worker: Instance, refused: &proto::Refused) {
        let Ok(id) = convert::id("refused.id", &refused.id) else {
            return;
        };
        if Some(refused.epoch) != self.epoch() {
            return;
        }
        let refusals = self.attempts.refusals.entry(id.clone()).or_default();
        refusals.push(worker);
        if refusals.len() >= REFUSALS {
            self.attempts.refusals.remove(&id);
            let outcome = Outcome::HandedBack { wait: REFUSED_WAIT };
            let (attempt, waits) = (refused.attempt, Vec::new());
            return self.settle(Request::Outcome {
                worker,
                id,
                attempt,
                outcome,
                waits,
            });
        }
        self.disclaimed(worker, id, refused.attempt);
    }

    /// There is a new stream to a worker: gos that were sent over the last one may be lost.
    pub(super) fn worker_back(&mut self, worker: Instance) {
        if !self.is_owning() {
            return;
        }
        let own = self.attempts.running.iter();
        let own = own.filter(|(_, running)| running.worker == worker);
        let own: Vec<_> = own.map(|(key, _)| key.clone()).collect();
        let held = self.attempts.held.iter();
        let held = held.filter(|(_, held)| held.worker == worker);
        let held: Vec<_> = held.map(|(id, held)| (id.clone(), held.attempt)).collect();
        for (id, attempt) in own.into_iter().chain(held) {
            self.ask(&id, attempt, worker);
        }
    }

    /// A worker is dead: what it had goes to others at once.
    pub(super) fn worker_gone(&mut self, worker: Instance) {
        if !self.is_owning() {
            return;
        }
        self.owner.worker_died(&self.shard, worker);
        let mut ids = Vec::new();
        self.attempts.running.retain(|(id, _), running| {
            let is_its = running.worker == worker;
            if is_its {
                ids.push(id.clone());
            }
            !is_its
        });
        self.attempts.held.retain(|id, held| {
            let is_its = held.worker == worker;
            if is_its {
                ids.push(id.clone());
            }
            !is_its
        });
        for id in ids {
            self.reconsider(&id);
        }
    }
}

//! The rules of a shard's owner, as a pure state machine: events in, [`Decision`]s out.
//!
//! [`ShardOwner`] decides against what it has read of the log, never against what it has sent. So two decisions about one
//! message can be under way at once; the log lets one of them count, and the other is decided again. Whatever it
//! promises (a yes, a go, a settled intake position) waits until the fact is read back and counts.
//!
//! | event | what the owner does |
//! |---|---|
//! | [`announce`](ShardOwner::announce) | appends an `Owner`; it acts when that is read back and counts |
//! | [`request`](ShardOwner::request) | queues a row that would grant it, or else a barrier: an answer that changes nothing needs a fact that was appended since |
//! | [`begin`](ShardOwner::begin) | queues `begun`; the go follows when it is read back |
//! | [`flush`](ShardOwner::flush) | puts what is queued into facts, whose bytes are frozen from then on |
//! | [`append_unknown`](ShardOwner::append_unknown) | sends again, in order, all that was not read back |
//! | [`read`](ShardOwner::read) | keeps promises, decides again what did not count, steps down when another owner counts |
//! | [`trim`](ShardOwner::trim) | `open`, `carried` rows, `close`, one step at a time |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `decide` | what a request comes to, as far as the log is known |
//! | `decision` | what an owner decides, its standing and its settings |
//! | `outbox` | facts that were sent and not read back |
//! | `request` | what is asked of an owner, and what it answers |
//! | `trim` | making the log complete by itself |

mod decide;
mod decision;
mod outbox;
mod request;
#[cfg(test)]
mod tests;
mod trim;

use std::collections::BTreeSet;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

pub use decision::{Decision, Go, Settings, Standing};
pub use request::{Order, Outcome, Reply, Request, Submit, Ticket, Verdict};

use crate::apply::{Applied, Shard, Table, Verified, Void, transition};
use crate::record::{Change, Forgotten, Instance, MessageRow, Owner, Record, Reign, Row, State};
use crate::rules::{Rule, Rules};
use decide::{Ruling, decide};
use outbox::Outbox;
pub use trim::is_worth_trimming;

/// What a fact promises once it is read back and its row counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Promise {
    /// To answer.
    Request(Request),
    /// To give an attempt to a worker.
    Go(Go),
    /// To look at a message again, if it was not forgotten.
    Forget(MessageId),
    /// To trim up to the `open`.
    Trim,
    /// To do nothing further.
    Nothing,
}

/// The rules of one shard's owner on one center.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardOwner {
    settings: Settings,
    rules: Rules,
    is_assigned: bool,
    standing: Standing,
    outbox: Outbox,
    /// Rows that wait for the next fact.
    queue: Vec<(Row, Promise)>,
    /// Requests that wait for any fact that is appended from now on.
    barriers: Vec<Request>,
    /// Attempts whose go was given, as far as is known to living workers.
    live: BTreeSet<(MessageId, u32)>,
    /// Messages of which a begun attempt is under way to the log.
    beginning: BTreeSet<MessageId>,
    /// Messages of which a `forgotten` is under way to the log.
    forgetting: BTreeSet<MessageId>,
    /// Up to where rows were carried.
    carried_to: Option<MessageId>,
}

impl ShardOwner {
    /// A center that follows the shard.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_rules(settings, Rules::default())
    }

    pub(crate) fn with_rules(settings: Settings, rules: Rules) -> Self {
        Self {
            settings,
            rules,
            is_assigned: false,
            standing: Standing::Following,
            outbox: Outbox::default(),
            queue: Vec::new(),
            barriers: Vec::new(),
            live: BTreeSet::new(),
            beginning: BTreeSet::new(),
            forgetting: BTreeSet::new(),
            carried_to: None,
        }
    }

    /// What the center is to the shard.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// The group gave the shard to this center. That decides who tries, and nothing else.
    pub const fn assign(&mut self) {
        self.is_assigned = true;
    }

    /// The group wants the shard back: nothing new begins. The center releases it when
    /// [`is_drained`](Self::is_drained), or after the drain time.
    pub const fn revoke(&mut self) {
        self.is_assigned = false;
    }

    /// Whether every begun attempt is settled or disclaimed, and everything that was decided was read back.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_idle = self.queue.is_empty() && self.barriers.is_empty() && self.outbox.is_empty();
        is_idle && self.live.is_empty() && self.beginning.is_empty()
    }

    /// Stops being the owner: promises that were not kept are taken back, and callers are sent elsewhere.
    pub fn release(&mut self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.step_down(&mut decisions);
        decisions
    }

    /// Announces itself, when it has the assignment, has read to the end of the log, and has verified its view there. `reign` is
    /// drawn anew for each call. Behind a [fence](Reign::fence) nothing is announced: try again later.
    pub fn announce<T: Table>(
        &mut self,
        shard: &Shard<T>,
        verified: Verified,
        reign: Reign,
    ) -> Vec<Decision> {
        let head = shard.head();
        let is_ready = head.is_complete && head.stopped().is_none() && verified.is_of(head);
        // IMPORTANT: behind a fence messages are missing that are on their way here, and none may be begun or forgotten.
        let is_ready = is_ready && head.reign.mover().is_none();
        if !self.is_assigned || !is_ready || self.standing != Standing::Following {
            return Vec::new();
        }
        let reign = if self.rules.holds(Rule::Reigns) {
            reign
        } else {
            Reign([0; 16])
        };
        let epoch = head.epoch + 1;
        self.standing = Standing::Announced { epoch, reign };
        let basis = head.basis();
        let owner = Owner {
            epoch,
            reign,
            basis,
        };
        let bytes = Record::Owner(owner).encode();
        self.outbox.announced(bytes.clone());
        vec![Decision::Append(bytes)]
    }

    /// Takes a request. Without ownership the caller is sent elsewhere at once: that promises nothing.
    pub fn request<T: Table>(
        &mut self,
        shard: &Shard<T>,
        request: Request,
        now: Timestamp,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if matches!(self.standing, Standing::Owning { .. }) {
            self.take(shard, request, now, false, &mut decisions);
        } else {
            refuse(&request, &mut decisions);
        }
        decisions
    }

    /// Begins the next attempt of a message with a worker, if it is due and no attempt of it is under way.
    /// Begins nothing once the shard was revoked.
    pub fn begin<T: Table>(
        &mut self,
        shard: &Shard<T>,
        id: &MessageId,
        worker: Instance,
        now: Timestamp,
    ) -> Vec<Decision> {
        let Standing::Owning { epoch, .. } = self.standing else {
            return Vec::new();
        };
        let Some(kept) = shard.table().get(id) else {
            return Vec::new();
        };
        let image = &kept.image;
        let is_due = now + self.settings.begin_ahead >= image.next;
        let is_live = self.live.contains(&(id.clone(), image.attempts));
        if !self.is_assigned || !is_due || is_live || self.beginning.contains(id) {
            return Vec::new();
        }
        let attempt = image.attempts.saturating_add(1);
        let change = Change::Begun {
            attempt,
            worker,
            at: now,
        };
        if transition(self.rules, image, &change, epoch).is_none() {
            return Vec::new();
        }
        self.beginning.insert(id.clone());
        let go = Go {
            worker,
            epoch,
            id: id.clone(),
            attempt,
            not_before: image.next,
        };
        let row = MessageRow {
            id: id.clone(),
            version: kept.version + 1,
            change,
        };
        if self.rules.holds(Rule::GoAfterReadBack) {
            self.queue.push((Row::Message(row), Promise::Go(go)));
            return Vec::new();
        }
        self.queue.push((Row::Message(row), Promise::Nothing));
        vec![Decision::Go(go)]
    }

    /// Whether a begun attempt of a message is under way to the log.
    #[must_use]
    pub fn is_beginning(&self, id: &MessageId) -> bool {
        self.beginning.contains(id)
    }

    /// A worker is gone: what it had is unknown, and is begun anew with another one.
    pub fn worker_died<T: Table>(&mut self, shard: &Shard<T>, worker: Instance) {
        let has = |id: &MessageId, attempt: u32| {
            let kept = shard.table().get(id);
            kept.is_some_and(|kept| {
                let doubt = kept.image.doubts.get(&attempt);
                doubt.is_some_and(|doubt| doubt.worker == worker)
            })
        };
        self.live.retain(|(id, attempt)| !has(id, *attempt));
    }

    /// Forgets a message that ended long ago, with all its answers, if that cannot change a future answer.
    pub fn forget<T: Table>(&mut self, shard: &Shard<T>, id: &MessageId, now: Timestamp) {
        let Some(kept) = shard.table().get(id) else {
            return;
        };
        let image = &kept.image;
        let answered = image.answers.values().map(|answered| answered.at).max();
        let since = match (&image.state, image.state.ended()) {
            (State::Absent, _) => answered,
            (_, ended) => ended.map(|ended| answered.map_or(ended, |at| at.max(ended))),
        };
        let is_old = since.is_some_and(|since| now.since(since) >= self.settings.keep);
        let is_behind = shard.head().next - kept.changed_at > self.settings.keep_offsets;
        // A dead letter waits for a person.
        let is_dead = matches!(image.state, State::Dead { .. });
        let is_owner = matches!(self.standing, Standing::Owning { .. });
        let is_due = is_old && is_behind && !is_dead;
        if !is_due || !is_owner || !self.forgetting.insert(id.clone()) {
            return;
        }
        let row = MessageRow {
            id: id.clone(),
            version: kept.version + 1,
            change: Change::Forgotten(Forgotten::Message),
        };
        let promise = Promise::Forget(id.clone());
        self.queue.push((Row::Message(row), promise));
    }

    /// Puts what is queued into facts and sends them.
    pub fn flush<T: Table>(&mut self, shard: &Shard<T>) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let Standing::Owning { epoch, reign } = self.standing else {
            return decisions;
        };
        while self.outbox.has_room(self.settings.in_flight)
            && !(self.queue.is_empty() && self.barriers.is_empty())
        {
            let basis = shard.head().basis();
            let barriers = std::mem::take(&mut self.barriers);
            let bytes = self
                .outbox
                .send(epoch, reign, basis, &mut self.queue, barriers);
            decisions.push(Decision::Append(bytes));
        }
        decisions
    }

    /// An append has no answer: it may have landed, may still land, or never will. Everything that was not read back is sent
    /// again, in order, with the same bytes.
    pub fn append_unknown<T: Table>(&mut self, shard: &Shard<T>, now: Timestamp) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if self.rules.holds(Rule::FrozenBytes) {
            let sent = self.outbox.sent();
            let from = if self.rules.holds(Rule::ResendAll) {
                0
            } else {
                sent.len().saturating_sub(1)
            };
            decisions.extend(sent[from..].iter().cloned().map(Decision::Append));
        } else {
            // What the rule forbids: the same sequences with other contents.
            self.beginning.clear();
            self.forgetting.clear();
            for promise in self.outbox.dissolve() {
                if let Promise::Request(request) = promise {
                    self.take(shard, request, now, false, &mut decisions);
                }
            }
        }
        decisions
    }

    /// Hears of a record that `shard` has just applied.
    pub fn read<T: Table>(
        &mut self,
        shard: &Shard<T>,
        bytes: &Bytes,
        applied: &Applied,
        now: Timestamp,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        match (Record::decode(bytes), applied) {
            (Ok(Record::Owner(owner)), applied) => {
                let (epoch, reign) = (owner.epoch, owner.reign);
                let is_own = self.standing == Standing::Announced { epoch, reign };
                match applied {
                    Applied::Owner if is_own => {
                        self.standing = Standing::Owning { epoch, reign };
                        self.outbox = Outbox::default();
                    }
                    Applied::Owner => self.step_down(&mut decisions),
                    Applied::Void(Void::Old) => {}
                    _ if is_own => self.step_down(&mut decisions),
                    Applied::Void(Void::OtherBasis) => decisions.push(Decision::Verify),
                    _ => {}
                }
            }
            (Ok(Record::Fact(fact)), applied) => {
                let (epoch, reign) = (fact.epoch, fact.reign);
                if self.standing == (Standing::Owning { epoch, reign }) {
                    self.read_own(shard, fact.sequence, bytes, applied, now, &mut decisions);
                } else if *applied == Applied::Void(Void::OtherBasis) {
                    decisions.push(Decision::Verify);
                }
            }
            (Err(_), _) => {}
        }
        decisions
    }

    fn read_own<T: Table>(
        &mut self,
        shard: &Shard<T>,
        sequence: u64,
        bytes: &Bytes,
        applied: &Applied,
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) {
        match applied {
            Applied::Fact { counted } => {
                let Some(sent) = self.outbox.confirm(sequence) else {
                    return self.step_down(decisions);
                };
                if sent.bytes != *bytes && self.rules.holds(Rule::FrozenBytes) {
                    // Another process writes under this reign.
                    return self.step_down(decisions);
                }
                for (index, promise) in sent.promises.into_iter().enumerate() {
                    let counts = counted.get(index).copied().unwrap_or(false);
                    self.keep(shard, promise, counts, now, decisions);
                }
                for request in sent.barriers {
                    self.take(shard, request, now, true, decisions);
                }
            }
            // Its basis is too old, or this view is wrong: nothing of this reign will count any more.
            Applied::Void(Void::OtherBasis) => self.step_down(decisions),
            // Landed twice, or before the one that it follows.
            _ => {}
        }
    }

    /// Keeps a promise, or decides again.
    fn keep<T: Table>(
        &mut self,
        shard: &Shard<T>,
        promise: Promise,
        counts: bool,
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) {
        match promise {
            Promise::Request(request) if counts => self.granted(shard, request, decisions),
            Promise::Request(request) => self.take(shard, request, now, false, decisions),
            Promise::Go(go) => {
                self.beginning.remove(&go.id);
                if counts {
                    self.live.insert((go.id.clone(), go.attempt));
                    decisions.push(Decision::Go(go));
                }
            }
            Promise::Trim => {
                if let Some(open) = shard.head().open
                    && counts
                {
                    let before = open.offset;
                    decisions.push(Decision::Trim { before });
                }
            }
            Promise::Forget(id) => {
                self.forgetting.remove(&id);
            }
            Promise::Nothing => {}
        }
    }

    /// A row that grants a request has counted.
    fn granted<T: Table>(
        &mut self,
        shard: &Shard<T>,
        request: Request,
        decisions: &mut Vec<Decision>,
    ) {
        if let Request::Outcome { id, attempt, .. } | Request::Disclaim { id, attempt, .. } =
            &request
        {
            self.live.remove(&(id.clone(), *attempt));
        }
        if let Some(row) = decide::second_half(shard, &request) {
            self.queue
                .push((Row::Message(row), Promise::Request(request)));
            return;
        }
        // The row says what the answer is, for this caller and for all that come with the same key.
        decide::grant(shard, request, decisions);
    }

    /// Takes a request: queues the row that would grant it, or a barrier. `is_behind_barrier`: a fact that was appended since
    /// the request came has been read back, so that what is known now was true after it came.
    fn take<T: Table>(
        &mut self,
        shard: &Shard<T>,
        request: Request,
        now: Timestamp,
        is_behind_barrier: bool,
        decisions: &mut Vec<Decision>,
    ) {
        let Standing::Owning { epoch, .. } = self.standing else {
            return refuse(&request, decisions);
        };
        match decide(shard, &self.settings, epoch, &request, now) {
            Ruling::Row(row) => {
                let promise = Promise::Request(request);
                self.queue.push((Row::Message(row), promise));
            }
            Ruling::Settled(settled) => {
                if is_behind_barrier || !self.rules.holds(Rule::Barriers) {
                    if let Request::Outcome { id, attempt, .. } = &request {
                        self.live.remove(&(id.clone(), *attempt));
                    }
                    decisions.extend(settled);
                } else {
                    self.barriers.push(request);
                }
            }
        }
    }

    /// Whether a request is being dealt with.
    #[cfg(test)]
    pub(crate) fn has(&self, request: &Request) -> bool {
        let is_same =
            |promise: &Promise| matches!(promise, Promise::Request(own) if own == request);
        let queued = self.queue.iter().any(|(_, promise)| is_same(promise));
        let promises = self.outbox.clone().dissolve();
        queued || self.barriers.contains(request) || promises.iter().any(is_same)
    }

    fn step_down(&mut self, decisions: &mut Vec<Decision>) {
        if self.standing == Standing::Following {
            return;
        }
        self.standing = Standing::Following;
        let queued = std::mem::take(&mut self.queue);
        let promises = queued.into_iter().map(|(_, promise)| promise);
        for promise in promises.chain(self.outbox.dissolve()) {
            if let Promise::Request(request) = promise {
                refuse(&request, decisions);
            }
        }
        for request in std::mem::take(&mut self.barriers) {
            refuse(&request, decisions);
        }
        self.live.clear();
        self.beginning.clear();
        self.forgetting.clear();
        self.carried_to = None;
        if self.is_assigned {
            decisions.push(Decision::AnnounceAgain);
        }
    }
}

/// Sends a caller elsewhere. Workers and the intake come again by themselves.
fn refuse(request: &Request, decisions: &mut Vec<Decision>) {
    let ticket = match request {
        Request::Command { ticket, .. } | Request::LookUp { ticket, .. } => Some(*ticket),
        Request::Intake { ticket, .. } => *ticket,
        Request::Outcome { .. } | Request::Disclaim { .. } => None,
    };
    let reply = Reply::NotOwner;
    decisions.extend(ticket.map(|ticket| Decision::Reply { ticket, reply }));
}

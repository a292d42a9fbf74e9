//! What the store does in the thread of its [`Committer`](laneway_disk::Committer): group commit.
//!
//! Submissions and changes are synced before they are answered. Settlements are not: a power cut repeats them. New messages
//! are refused before the disk is full, so that withdrawing and settling still find room.
//!
//! While nothing can be written nothing is taken and nothing is claimed, so nothing is delivered that could not be noted.
//! Changes that were refused end what they had noted in [`Claims`](super::claims) when the store writes again, see
//! [`GivenUp`]. Settlements are not refused by trouble that passes: they wait until they are written, and their messages
//! count as firing. Were they given up, a message that was delivered would look as if it had not been tried.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use laneway_disk::commit::{self, Durability, OpenError, Reopened, Turn};
use laneway_disk::{Directory, QueuePermit, StoreError};
use tokio::runtime::Handle;

use super::Shared;
use super::ahead::Recent;
use super::batch::{self, Batch, Written};
use super::request::{Ack, QueuedRequest, Request, Settle};
use super::tables::{Recovered, Tables, open_tables};
use crate::store::{DueKey, Scheduled};
use crate::{Accepted, Error, Message};

/// What a settlement comes to in the journal, about.
pub(super) const SETTLEMENT_BYTES: usize = 400;

/// How often the floor of the due index is looked at.
const RAISE_FLOOR_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    shared: Arc<Shared>,
    runtime: Handle,
    recent: Recent,
    floor: Floor,
    given_up: GivenUp,
}

/// What batches that were refused leave behind, until the store writes again.
#[derive(Default)]
struct GivenUp {
    /// The messages whose changes were not made.
    changing: Vec<DueKey>,
    /// Messages that may wait without the due index knowing.
    waiting: Vec<Scheduled>,
}

/// A batch on its way.
pub(super) struct Underway {
    written: Written,
    answers: Vec<Answer>,
    /// The settlements that are in it, and their answers.
    settled: Vec<(Settle, Result<(), Error>)>,
    /// Held until the answers are given.
    permits: Vec<QueuePermit>,
    /// How many requests of it wait for a sync.
    synced: usize,
}

/// Where the due index begins, on its way to being written.
///
/// The floor may rise only over what is gone for good: were it durable before the removal of a row
/// below it, a power cut would leave a message that no scan finds. So [`Floor::take`] looks a floor up, it waits until
/// all that was written before is synced ([`Floor::synced`]), and is written then; a batch that takes a place below it
/// meanwhile lowers it ([`Floor::lower`]).
struct Floor {
    looked: Instant,
    next: Option<DueKey>,
    ready: Option<DueKey>,
}

impl Floor {
    fn new() -> Self {
        Self {
            looked: Instant::now(),
            next: None,
            ready: None,
        }
    }

    /// The floor for the next batch. It does not rise over those that are set aside.
    fn take(&mut self, shared: &Shared, known: DueKey) -> DueKey {
        if let Some(due_index) = shared.due_index.get()
            && self.next.is_none()
            && self.looked.elapsed() >= RAISE_FLOOR_EVERY
        {
            self.looked = Instant::now();
            let aside = shared.damage.first();
            self.next = Some(aside.map_or(due_index.floor(), |aside| aside.min(due_index.floor())));
        }
        self.ready.take().unwrap_or(known)
    }

    fn lower(&mut self, lowest: DueKey) {
        self.next = self.next.map(|next| next.min(lowest));
        self.ready = self.ready.map(|ready| ready.min(lowest));
    }

    /// What was looked up does not count any more.
    fn forget(&mut self) {
        (self.next, self.ready) = (None, None);
    }

    fn synced(&mut self) {
        self.ready = self.next.take();
    }
}

/// An answer that waits for the batch.
enum Answer {
    Submitted(
        Vec<Result<Accepted, Error>>,
        Ack<Vec<Result<Accepted, Error>>>,
    ),
    Changed(
        Vec<Result<Message, Error>>,
        Ack<Vec<Result<Message, Error>>>,
    ),
    Settled(Result<(), Error>, Ack<Result<(), Error>>),
    Covered(Ack<Result<(), Error>>),
    Forgotten(Result<bool, Error>, Ack<Result<bool, Error>>),
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, runtime: Handle) -> Self {
        Self {
            recent: Recent::new(shared.sizes.remembered),
            floor: Floor::new(),
            given_up: GivenUp::default(),
            shared,
            runtime,
        }
    }

    /// Answers from within the runtime: an answer from this thread may wake one that takes its place for the sake of a
    /// single answer.
    fn answer(&self, answers: Vec<Answer>, permits: Vec<QueuePermit>, failure: Option<Error>) {
        self.runtime.spawn(async move {
            // Room first: a caller that hears the answer may want it.
            drop(permits);
            for answer in answers {
                answer.give(failure.as_ref());
            }
        });
    }
}

/// Adds a request to a batch, unless it is a settlement.
fn add(shared: &Shared, batch: &mut Batch<'_>, request: Request, turn: &mut Turn<'_>) -> Answer {
    match request {
        Request::Submit(entries, ack) => {
            let answers = if turn.is_short_of_room() {
                vec![Err(shared.error(&StoreError::Full)); entries.len()]
            } else {
                let entries = entries.into_iter();
                entries.map(|entry| batch.submit(entry)).collect()
            };
            Answer::Submitted(answers, ack)
        }
        Request::Change(changes, ack) => {
            let changes = changes.into_iter();
            let answers = changes.map(|(change, ahead)| batch.change(change, ahead));
            Answer::Changed(answers.collect(), ack)
        }
        Request::Settle(settle) => {
            let answer = settled(batch, &settle);
            Answer::Settled(answer, settle.ack)
        }
        Request::Cover { before, ack } => {
            batch.cover(before);
            Answer::Covered(ack)
        }
        Request::Forget {
            keys_before,
            ended_before,
            ack,
        } => {
            // Readiness tells of it although no message is submitted.
            turn.is_short_of_room();
            Answer::Forgotten(batch.forget(keys_before, ended_before), ack)
        }
    }
}

impl commit::Writer for Writer {
    type Engine = Tables;
    type Request = QueuedRequest;
    type Pending = Underway;
    type Found = Recovered;

    fn open(&self, directory: &mut Directory) -> Result<Reopened<Tables, Recovered>, OpenError> {
        match open_tables(directory, self.shared.sizes) {
            Ok((engine, found)) => Ok(Reopened {
                commit: found.commit,
                engine,
                found,
            }),
            Err(error @ (Error::Damaged { .. } | Error::Format { .. } | Error::Failed(_))) => {
                Err(OpenError::Stays(error.to_string()))
            }
            Err(error) => Err(OpenError::Passes(error.to_string())),
        }
    }

    const MENDS: bool = true;

    fn mend(&self, directory: &mut Directory) -> Result<bool, OpenError> {
        self.shared.mend(directory)
    }

    fn adopt(&mut self, found: Recovered) {
        let shared = &self.shared;
        // What was looked up before may be another thing now.
        let batches = shared.batches.fetch_add(1, Ordering::AcqRel) + 1;
        self.recent = Recent::after(batches, shared.sizes.remembered);
        shared
            .next_serial
            .fetch_max(found.next_serial, Ordering::AcqRel);
        {
            let mut contents = shared.contents();
            contents.floor = found.floor.min(contents.floor);
            contents.counts = found.counts;
        }
        self.floor.forget();
        let given_up = std::mem::take(&mut self.given_up);
        shared.claims.end_changes(given_up.changing.into_iter());
        // Those who are not there after all are found out when they are claimed.
        shared.admit(&given_up.waiting);
    }

    fn mark(&self, tables: &Tables, commit: u64) -> fjall::Result<()> {
        batch::mark(&self.shared, tables, commit)
    }

    fn mark_last(&self, tables: &Tables, commit: u64) -> fjall::Result<()> {
        batch::mark_last(&self.shared, tables, commit)
    }

    fn write(
        &mut self,
        tables: &Tables,
        waiting: &mut VecDeque<QueuedRequest>,
        turn: &mut Turn<'_>,
    ) -> commit::Batch<Underway> {
        let shared = self.shared.clone();
        let known_floor = shared.contents().floor;
        let floor = self.floor.take(&shared, known_floor);
        let mut batch = Batch::new(&shared, tables, &mut self.recent, floor);
        let (mut answers, mut permits, mut synced) = (Vec::new(), Vec::new(), 0);
        // They come last, see `Batch`. A change of such a message finds it firing meanwhile.
        let mut settlements = Vec::new();
        while let Some(QueuedRequest { request, permit }) = waiting.pop_front() {
            permits.extend(permit);
            match request {
                Request::Settle(settle) => {
                    batch.bytes += settle.settlements.len() * SETTLEMENT_BYTES;
                    settlements.push(settle);
                }
                request => {
                    synced += usize::from(!matches!(request, Request::Forget { .. }));
                    answers.push(add(&shared, &mut batch, request, turn));
                }
            }
            if batch.bytes >= shared.sizes.batch_bytes {
                break;
            }
        }
        let settle = |settle| {
            let answer = settled(&mut batch, &settle);
            (settle, answer)
        };
        let settled = settlements.into_iter().map(settle).collect();
        self.floor.lower(batch.lowest);
        let durability = if batch.must_sync {
            Durability::Synced
        } else if batch.is_empty() && batch.floor == known_floor {
            Durability::Nothing
        } else {
            Durability::Written
        };
        let (written, result) = match durability {
            Durability::Nothing => (batch.discard(), Ok(())),
            Durability::Written => batch.write(None, known_floor),
            Durability::Synced => batch.write(Some(turn.commit), known_floor),
        };
        commit::Batch {
            pending: Underway {
                written,
                answers,
                settled,
                permits,
                synced: synced * usize::from(durability == Durability::Synced),
            },
            durability,
            result,
        }
    }

    fn written(&mut self, underway: &mut Underway) {
        let written = &mut underway.written;
        let shared = &self.shared;
        shared.batches.fetch_add(1, Ordering::Release);
        {
            let mut contents = shared.contents();
            contents.floor = written.floor;
            batch::merge(&mut contents.counts, std::mem::take(&mut written.counts));
        }
        shared.claims.end_changes(written.changing.drain(..));
        shared.claims.end(written.ending.drain(..));
        shared.claims.end(written.stopped.drain());
        shared.admit(&std::mem::take(&mut written.quick_places));
    }

    fn synced(&mut self) {
        self.floor.synced();
    }

    fn committed(&mut self, underway: Underway, _: &mut VecDeque<QueuedRequest>) -> usize {
        // IMPORTANT: before any caller is told, so that the floor never passes them.
        self.shared.admit(&underway.written.due_keys);
        let covered = underway.written.covered;
        self.shared.covered.fetch_max(covered, Ordering::AcqRel);
        let Underway {
            mut answers,
            settled,
            permits,
            synced,
            ..
        } = underway;
        answers.extend(settled.into_iter().map(Answer::settled));
        self.answer(answers, permits, None);
        synced
    }

    fn refused(
        &mut self,
        underway: Underway,
        failure: &StoreError,
        is_unknown: bool,
    ) -> Vec<QueuedRequest> {
        let Underway {
            written,
            mut answers,
            settled,
            permits,
            ..
        } = underway;
        let mut again = Vec::new();
        if failure.passes() {
            self.given_up.changing.extend(written.changing);
            self.given_up.waiting.extend(written.due_keys);
            self.given_up.waiting.extend(written.quick_places);
            // `Claims::begin` may have turned claims of these away while their change was on its way.
            self.given_up.waiting.extend(written.turned_away);
            again.extend(settled.into_iter().map(|(settle, _)| kept(settle, true)));
        } else {
            answers.extend(settled.into_iter().map(Answer::settled));
        }
        let failure = match self.shared.error(failure) {
            // What was asked for may be done nevertheless.
            error if is_unknown => Error::Unconfirmed(error.to_string()),
            error => error,
        };
        self.answer(answers, permits, Some(failure));
        again
    }

    fn refuse(
        &mut self,
        QueuedRequest { request, permit }: QueuedRequest,
        failure: &StoreError,
    ) -> Option<QueuedRequest> {
        let request = match request {
            Request::Settle(settle) if failure.passes() => {
                let is_again = settle.is_again;
                return Some(kept(settle, is_again));
            }
            request => request,
        };
        let failure = self.shared.error(failure);
        let refused = |count: usize| (0..count).map(|_| failure.clone());
        let answer = match request {
            Request::Submit(entries, ack) => {
                Answer::Submitted(refused(entries.len()).map(Err).collect(), ack)
            }
            Request::Change(changes, ack) => {
                Answer::Changed(refused(changes.len()).map(Err).collect(), ack)
            }
            Request::Settle(Settle { ack, .. }) | Request::Cover { ack, .. } => {
                Answer::Settled(Err(failure.clone()), ack)
            }
            Request::Forget { ack, .. } => Answer::Forgotten(Err(failure.clone()), ack),
        };
        self.answer(vec![answer], permit.into_iter().collect(), None);
        None
    }
}

/// Adds settlements to a batch.
fn settled(batch: &mut Batch<'_>, settle: &Settle) -> Result<(), Error> {
    let mut settlements = settle.settlements.iter();
    settlements.try_for_each(|settlement| batch.settle(settlement, settle.is_again))
}

/// Settlements that wait until the store writes again, without room in the queue.
fn kept(settle: Settle, is_again: bool) -> QueuedRequest {
    QueuedRequest {
        request: Request::Settle(Settle { is_again, ..settle }),
        permit: None,
    }
}

impl Answer {
    fn settled((settle, answer): (Settle, Result<(), Error>)) -> Self {
        Self::Settled(answer, settle.ack)
    }

    fn give(self, failure: Option<&Error>) {
        fn each<T>(
            answers: Vec<Result<T, Error>>,
            failure: Option<&Error>,
        ) -> Vec<Result<T, Error>> {
            match failure {
                // What was refused anyway keeps its reason.
                Some(failure) => answers
                    .into_iter()
                    .map(|answer| answer.and_then(|_| Err(failure.clone())))
                    .collect(),
                None => answers,
            }
        }
        fn one<T>(answer: Result<T, Error>, failure: Option<&Error>) -> Result<T, Error> {
            match failure {
                Some(failure) => answer.and_then(|_| Err(failure.clone())),
                None => answer,
            }
        }
        // A caller that does not wait any more does not want to know.
        match self {
            Self::Submitted(answers, ack) => drop(ack.send(each(answers, failure))),
            Self::Changed(answers, ack) => drop(ack.send(each(answers, failure))),
            Self::Settled(answer, ack) => drop(ack.send(one(answer, failure))),
            Self::Covered(ack) => drop(ack.send(one(Ok(()), failure))),
            Self::Forgotten(answer, ack) => drop(ack.send(one(answer, failure))),
        }
    }
}

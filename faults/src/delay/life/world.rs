//! The store, the model of it, and what is done to both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway_delay::clock::Clock;
use laneway_delay::store::{DiskStore, Sizes};
use laneway_delay::{
    Accepted, Delays, Error, Extend, MessageId, Options, Schedule, State, Submission, Target,
    Timestamp, When,
};
use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::TempDir;

use super::clock::SimClock;
use super::disk::SimDisk;
use super::witness::{Witness, payload};

pub(super) const SIZES: Sizes = Sizes {
    memtable: 16 << 10,
    cache: 256 << 10,
    ..Sizes::DEFAULT
};

/// How long anything may take that has to come.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// Where a message is, as far as the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Waiting,
    Withdrawn,
    /// Delivered or dead: the store may forget that when its power is cut.
    Ended,
    Gone,
}

/// A message of the model.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) due: Timestamp,
    pub(super) life: Life,
    pub(super) tag: u64,
    /// Whether it is known for good that an attempt may have delivered it.
    pub(super) in_doubt: bool,
    /// Of deliveries from this number on the due time is known, or that there must be none.
    pub(super) firm_from: usize,
}

/// The store and the model.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) lives: u64,
    pub(super) steps: u64,
    pub(super) cuts: u64,
    pub(super) directory: PathBuf,
    pub(super) disk: SimDisk,
    pub(super) clock: SimClock,
    pub(super) witness: Witness,
    pub(super) delays: Delays,
    pub(super) dice: StdRng,
    pub(super) model: BTreeMap<String, Kept>,
    /// Nobody knows what became of these: an answer was an error.
    pub(super) unsure: Vec<String>,
    pub(super) judged: usize,
    pub(super) wrong: Vec<String>,
    next: u64,
    /// Idempotency keys, what was submitted with them, and which message that is.
    pub(super) keys: Vec<(MessageId, Submission)>,
    pub(super) submitted: u64,
    pub(super) withdrawn: u64,
    pub(super) stopped: u64,
    pub(super) forgotten: u64,
    pub(super) flipped: u64,
}

/// So long that nothing is forgotten by itself.
const FOR_EVER: Duration = Duration::from_hours(100_000);

fn options(keep: Duration) -> Options {
    Options {
        horizon: Duration::from_secs(1),
        near: 40,
        retry: Schedule::new([Duration::from_millis(5)]),
        keep_ended: keep,
        keep_keys: keep,
        ..Options::default()
    }
}

impl World {
    pub(super) async fn begin(dice: StdRng) -> Result<Self> {
        let folder = tempfile::tempdir().context("no folder")?;
        let directory = folder.path().join("0");
        let (disk, clock) = (SimDisk::default(), SimClock::new(1_800_000_000_000));
        let witness = Witness::new();
        let delays = Self::open(&directory, &disk, &clock, &witness).await?;
        Ok(Self {
            folder,
            lives: 1,
            steps: 0,
            cuts: 0,
            directory,
            disk,
            clock,
            witness,
            delays,
            dice,
            model: BTreeMap::new(),
            unsure: Vec::new(),
            judged: 0,
            wrong: Vec::new(),
            next: 0,
            keys: Vec::new(),
            submitted: 0,
            withdrawn: 0,
            stopped: 0,
            forgotten: 0,
            flipped: 0,
        })
    }

    pub(super) async fn open(
        directory: &std::path::Path,
        disk: &SimDisk,
        clock: &SimClock,
        witness: &Witness,
    ) -> Result<Delays, Error> {
        Self::open_forgetful(directory, disk, clock, witness, FOR_EVER).await
    }

    /// The same, with what has ended, and keys, being kept for so long only.
    pub(super) async fn open_forgetful(
        directory: &std::path::Path,
        disk: &SimDisk,
        clock: &SimClock,
        witness: &Witness,
        keep: Duration,
    ) -> Result<Delays, Error> {
        let store = DiskStore::open_on(directory, Box::new(disk.clone()), SIZES).await?;
        Delays::start(
            Arc::new(store),
            Arc::new(clock.clone()),
            witness.sinks(),
            options(keep),
        )
    }

    pub(super) fn fail(&mut self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }

    pub(super) fn fresh_tag(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn submission(&mut self, id: &str, tag: u64, when: When) -> Submission {
        // One in twelve is large, and one in a hundred as large as it may be.
        let size = match self.dice.random_range(0..100) {
            0 => 1 << 20,
            1..=8 => self.dice.random_range(20_000..120_000),
            _ => self.dice.random_range(8..400),
        };
        let topic = format!("t{}", tag % 3);
        let target = if tag % 4 == 1 {
            Target::bus(
                format!("b{}", tag % 8 / 4),
                format!("k{}", tag % 5),
                "Lived",
            )
        } else {
            Target::callback(format!("http://h{}/", tag % 5))
        };
        let id = MessageId::new(id).unwrap_or_else(|_| MessageId::unique());
        Submission::new(topic, when, target)
            .id(id)
            .payload(payload(tag, size))
    }

    pub(super) fn some_due(&mut self) -> When {
        match self.dice.random_range(0..4) {
            0 => When::After(Duration::from_millis(self.dice.random_range(0..3_000))),
            1 => When::At(self.clock.now() + Duration::from_secs(self.dice.random_range(0..600))),
            _ => {
                When::At(self.clock.now() + Duration::from_millis(self.dice.random_range(1..5_000)))
            }
        }
    }

    /// Notes what a submission became.
    pub(super) fn note(&mut self, id: &str, tag: u64, answer: Result<Accepted, Error>) -> bool {
        match answer {
            Ok(accepted) => {
                self.submitted += 1;
                let kept = Kept {
                    due: accepted.due,
                    life: Life::Waiting,
                    tag,
                    in_doubt: false,
                    firm_from: 0,
                };
                self.model.insert(id.to_owned(), kept);
                true
            }
            Err(Error::DiskFull { .. }) if !self.model.contains_key(id) => false,
            Err(_) => {
                self.model.remove(id);
                self.unsure.push(id.to_owned());
                false
            }
        }
    }

    /// One message that is due then; whether it was taken.
    pub(super) async fn submit_one(&mut self, when: When) -> (String, bool) {
        let tag = self.fresh_tag();
        let id = format!("m{tag}");
        let submission = self.submission(&id, tag, when);
        let answer = self.delays.submit_one(submission).await;
        let is_taken = self.note(&id, tag, answer);
        (id, is_taken)
    }

    pub(super) async fn submit(&mut self) {
        let count = match self.dice.random_range(0..3) {
            0 => self.dice.random_range(2..20),
            _ => 1,
        };
        let mut ids = Vec::new();
        let mut submissions = Vec::new();
        for _ in 0..count {
            let tag = self.fresh_tag();
            let id = format!("m{tag}");
            let when = self.some_due();
            submissions.push(self.submission(&id, tag, when));
            ids.push((id, tag));
        }
        let answers = self.delays.submit(submissions).await;
        for ((id, tag), answer) in ids.into_iter().zip(answers) {
            if let Err(error) = &answer {
                self.fail(format!("{id} was refused: {error}"));
            }
            self.note(&id, tag, answer);
        }
    }

    /// One that the model knows, of those in a state.
    pub(super) fn pick(&mut self, life: Life) -> Option<String> {
        let ids: Vec<&String> = self
            .model
            .iter()
            .filter(|(_, kept)| kept.life == life)
            .map(|(id, _)| id)
            .collect();
        if ids.is_empty() {
            return None;
        }
        let at = self.dice.random_range(0..ids.len());
        Some(ids[at].clone())
    }

    pub(super) fn id(text: &str) -> MessageId {
        MessageId::new(text).unwrap_or_else(|_| MessageId::unique())
    }

    /// The same id with another request is refused.
    pub(super) async fn submit_again(&mut self) {
        let Some(id) = self.pick(Life::Waiting) else {
            return;
        };
        let tag = self.fresh_tag();
        let submission = self.submission(&id, tag, When::At(self.clock.now()));
        let answer = self.delays.submit_one(submission).await;
        if !matches!(answer, Err(Error::IdTaken(_))) {
            self.fail(format!("{id} was taken twice: {answer:?}"));
        }
    }

    pub(super) async fn extend(&mut self) {
        let Some(id) = self.pick(Life::Waiting) else {
            return;
        };
        let by = Duration::from_millis(self.dice.random_range(1..20_000));
        match self.delays.extend(&Self::id(&id), Extend::By(by)).await {
            Ok(message) => {
                let firm_from = self.witness.len();
                let kept = self.model.get_mut(&id);
                let is_in_doubt = kept.as_ref().is_some_and(|kept| kept.in_doubt);
                if let Some(kept) = kept {
                    kept.due = message.record.due();
                    kept.firm_from = firm_from;
                }
                if is_in_doubt || message.record.is_in_doubt() {
                    self.fail(format!("{id} was moved, and may have been delivered"));
                }
            }
            Err(Error::Refused(_)) => {}
            Err(error) => self.fail(format!("extending {id}: {error}")),
        }
    }

    pub(super) async fn withdraw(&mut self) {
        let Some(id) = self.pick(Life::Waiting) else {
            return;
        };
        match self.delays.withdraw(&Self::id(&id)).await {
            Ok(message) => {
                let firm_from = self.witness.len();
                self.withdrawn += 1;
                let kept = self.model.get_mut(&id);
                let is_in_doubt = kept.as_ref().is_some_and(|kept| kept.in_doubt);
                if let Some(kept) = kept {
                    kept.life = Life::Withdrawn;
                    kept.firm_from = firm_from;
                }
                if is_in_doubt || message.record.is_in_doubt() {
                    self.fail(format!("{id} was taken back, and may have been delivered"));
                }
            }
            Err(Error::Refused(refusal)) => {
                if matches!(refusal.state, State::Withdrawn { .. }) {
                    self.fail(format!("{id} was withdrawn, and nobody asked for it"));
                }
            }
            Err(error) => self.fail(format!("withdrawing {id}: {error}")),
        }
    }

    pub(super) async fn replace(&mut self) {
        let life = match self.dice.random_range(0..3) {
            0 => Life::Withdrawn,
            1 => Life::Ended,
            _ => Life::Waiting,
        };
        let Some(id) = self.pick(life) else { return };
        let tag = self.fresh_tag();
        let when = self.some_due();
        let submission = self.submission(&id, tag, when).replace();
        match self.delays.submit_one(submission).await {
            Ok(accepted) => {
                if life == Life::Waiting && self.model.get(&id).is_some_and(|kept| kept.in_doubt) {
                    self.fail(format!("{id} was replaced, and may have been delivered"));
                }
                self.note(&id, tag, Ok(accepted));
            }
            Err(Error::Refused(_)) => {}
            Err(error) => self.fail(format!("replacing {id}: {error}")),
        }
    }

    pub(super) async fn purge(&mut self) {
        let Some(id) = self.pick(Life::Withdrawn) else {
            return;
        };
        match self.delays.purge(&Self::id(&id)).await {
            Ok(()) => {
                if let Some(kept) = self.model.get_mut(&id) {
                    kept.life = Life::Gone;
                }
            }
            Err(error) => self.fail(format!("purging {id}: {error}")),
        }
    }

    /// Makes a new message of a dead one.
    pub(super) async fn replay(&mut self) {
        let query = laneway_delay::Query::new(laneway_delay::StateName::Dead);
        let Ok(page) = self.delays.list(&query).await else {
            self.fail("dead letters cannot be listed");
            return;
        };
        let Some(dead) = page.messages.first() else {
            return;
        };
        let tag = dead.payload.first_chunk::<8>().copied();
        let tag = u64::from_le_bytes(tag.unwrap_or_default());
        match self.delays.replay(&dead.id).await {
            Ok(accepted) => {
                if let Some(kept) = self.model.get_mut(dead.id.as_str()) {
                    kept.life = Life::Gone;
                }
                let id = accepted.id.to_string();
                self.note(&id, tag, Ok(accepted));
            }
            Err(error) => self.fail(format!("replaying {}: {error}", dead.id)),
        }
    }

    /// Time passes, and what is due goes.
    pub(super) async fn idle(&mut self) {
        let millis = match self.dice.random_range(0..10) {
            0 => self.dice.random_range(0..120_000),
            _ => self.dice.random_range(0..1_500),
        };
        self.clock.pass(millis);
        if self.dice.random_bool(0.5) {
            self.quiet().await;
        }
    }

    pub(super) fn set_clock(&mut self) {
        let step = self.dice.random_range(-600_000..600_000);
        self.clock.step(step);
    }

    /// Waits until nothing that is due is left; tells if that does not come.
    pub(super) async fn quiet(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut looked = Instant::now();
        loop {
            let left = self.due_and_waiting().await;
            if left.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                self.fail(format!("{left:?} are due and do not fire"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            // Destinations that could not be served, and messages that could not be claimed, rest for up to ten seconds, by
            // this clock. It passes by how long a look takes, too: on a busy machine there are few of them.
            let took = u64::try_from(looked.elapsed().as_millis()).unwrap_or(u64::MAX);
            looked = Instant::now();
            self.clock.pass(20 + 10 * took);
        }
    }

    /// Those of the model that are due and have not ended. The model learns of those that have.
    pub(super) async fn due_and_waiting(&mut self) -> Vec<String> {
        let now = self.clock.now();
        let due: Vec<String> = self
            .model
            .iter()
            .filter(|(_, kept)| kept.life == Life::Waiting && kept.due <= now)
            .map(|(id, _)| id.clone())
            .collect();
        let mut left = Vec::new();
        for id in due {
            match self.delays.get(&Self::id(&id)).await {
                Ok(message) if message.record.state().is_final() => {
                    if let Some(kept) = self.model.get_mut(&id) {
                        kept.life = Life::Ended;
                    }
                }
                // It waits for its next attempt.
                Ok(message)
                    if message.record.is_in_doubt()
                        && matches!(message.record.state(), State::Scheduled { at } if at > now) => {
                }
                _ => left.push(id),
            }
        }
        left
    }

    /// The end: everything that waits comes.
    pub(super) async fn finish(&mut self) -> Result<()> {
        self.reopen().await?;
        // Two hours: also a clock that is not believed has caught up then.
        for _ in 0..3 {
            self.clock.pass(7_200_000);
            self.quiet().await;
        }
        self.judge_deliveries();
        self.judge_store().await;
        let closed = self.delays.close(PATIENCE).await;
        ensure!(closed.is_ok(), "it does not close: {closed:?}");
        Ok(())
    }
}

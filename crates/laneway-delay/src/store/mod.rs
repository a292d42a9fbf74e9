//! Where messages are kept: what a store promises.
//!
//! A store holds messages by id, in the order in which they fire, and by the moment at which they
//! ended. Every change is one transition of the [state machine](crate::message) on the record as it
//! stands: read and written in one step that no other change can come between. Of two changes that
//! meet, the second one finds what the first one made of it.
//!
//! # What is durable when
//!
//! | change | answered when | why |
//! |---|---|---|
//! | submit, extend, withdraw, replay, purge | it is on stable storage | its caller is told that it happened |
//! | claim | it excludes all other changes, and it is on stable storage that claims may have come so far | a claim that is lost in a crash repeats an attempt, as the crash itself does; a withdraw after that is refused |
//! | settle | it is written, not synced | as above: what is lost was done, and is done again |
//! | settle an attempt without an answer | it is on stable storage | a later withdraw has to be refused |
//!
//! So after a crash a message is where the last durable change left it, and what was firing fires
//! again.
//!
//! # The due index
//!
//! Scheduled messages are in the due index by their [`DueKey`]. The store tells the engine's part of it, the [`DueIndex`], of
//! every message that takes a place, after the change is durable and before it is answered. The engine keeps the near part in
//! memory and reads the rest by [`scan`](Store::scan).
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `memory` | a [`MemoryStore`], for tests and for what may be lost |
//! | `disk` | a `DiskStore` (feature `file`) |
//! | `change` | what a change makes of a message: pure, the same in all stores |

pub(crate) mod change;
#[cfg(feature = "file")]
mod disk;
mod memory;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

#[cfg(feature = "file")]
#[doc(hidden)]
pub use disk::Sizes;
#[cfg(feature = "file")]
pub use disk::{DiskStore, Leaving, LeavingKey, MoveNote, MoveStage};
pub use memory::MemoryStore;

use crate::{
    Accepted, BoxFuture, Counts, Error, Health, Message, MessageId, Page, Query, Schedule,
    Submission, Timestamp, Undelivered, Version,
};

/// Where a waiting message stands in the due index: by the moment at which it may fire, then in the order in
/// which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueKey {
    /// When it may fire.
    pub at: Timestamp,
    /// The number of the message in its store.
    pub serial: u64,
}

impl DueKey {
    /// Before all others.
    pub const FIRST: Self = Self {
        at: Timestamp::from_millis(0),
        serial: 0,
    };

    /// The first place at this moment.
    #[must_use]
    pub const fn at(at: Timestamp) -> Self {
        Self { at, serial: 0 }
    }

    /// The next place after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self {
            at: self.at,
            serial: self.serial.saturating_add(1),
        }
    }
}

/// What is known of a waiting message while it waits: as little as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Where it stands.
    pub due_key: DueKey,
    /// The version that is claimed when it fires.
    pub version: Version,
    /// Where it goes, as a number.
    pub route: Route,
    /// How large its payload, metadata and headers are: an attempt holds them in memory.
    pub payload_bytes: u32,
}

/// A destination as a number: one topic of the bus, or one host.
///
/// The numbers are others in each process, and unknown outside of it: no sender can make up a host that shares the
/// queue and the slots of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route(u64);

impl Route {
    /// The route of a target.
    #[must_use]
    pub fn of(target: &crate::Target) -> Self {
        match target {
            crate::Target::Bus(bus) => Self::to_topic(&bus.topic),
            crate::Target::Callback(callback) => Self::to_host(&callback.url),
        }
    }

    /// The route to a topic of the bus.
    pub(crate) fn to_topic(topic: &str) -> Self {
        Self(numbered(topic) << 1)
    }

    /// The route to the host of an address.
    pub(crate) fn to_host(url: &str) -> Self {
        Self(numbered(&crate::host::host_and_port(url)) << 1 | 1)
    }

    /// Whether it leads to the bus.
    #[must_use]
    pub const fn is_bus(self) -> bool {
        self.0 & 1 == 0
    }

    /// A route by its number.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number of the route.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

fn numbered(name: &str) -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| RandomState::new().build_hasher().finish());
    xxhash_rust::xxh3::xxh3_64_with_seed(name.to_ascii_lowercase().as_bytes(), seed)
}

/// A submission that was checked.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What was submitted.
    pub submission: Submission,
    /// When it is due.
    pub due: Timestamp,
    /// When it was submitted: [`Message::accepted`].
    pub now: Timestamp,
}

/// A change that a caller asks for.
#[derive(Clone, Debug)]
pub struct Change {
    /// The message to change.
    pub id: MessageId,
    /// When it was asked for: the transition is judged, and noted, as of then.
    pub now: Timestamp,
    /// The change to make.
    pub what: Operation,
}

/// What can be asked of a message.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// To be later.
    Extend(crate::Extend),
    /// To be later, but not after this moment.
    ExtendUntil(crate::Extend, Timestamp),
    /// To be taken back.
    Withdraw,
    /// To be taken back, also if an attempt runs or may have delivered it: no further attempts.
    Stop,
    /// To become a new message that is due now; only of a dead one, which is gone then.
    Replay,
    /// To be forgotten; only of one that has ended.
    Purge,
}

/// A message that was claimed: no other change is made to it until it is settled.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Where it stood.
    pub due_key: DueKey,
    /// The version that was claimed.
    pub before: Version,
    /// The message, firing.
    pub message: Arc<Message>,
}

/// What became of a claim.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The claim that ends.
    pub claim: Claim,
    /// When it ended.
    pub now: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The receiver took it.
    Delivered,
    /// Not delivered.
    Failed(Undelivered, Schedule),
    /// It was certainly not sent: the message takes its old place, and nothing is counted.
    Released,
    /// Unknown, for this reason: the message keeps its place, the attempt is counted, and the message is
    /// in doubt from then on. The due index is not told of it: the caller of [`Store::settle`] puts it back.
    Unknown(String),
}

#[cfg(feature = "file")]
impl Outcome {
    /// Whether the message may have been delivered by this attempt, and may not look as if it had not been tried.
    pub(crate) fn leaves_doubt(&self) -> bool {
        match self {
            Self::Unknown(_) => true,
            Self::Failed(undelivered, _) => undelivered.failure.is_unknown(),
            Self::Delivered | Self::Released => false,
        }
    }
}

/// The near part of the due index, as a store sees it.
pub trait DueIndex: Send + Sync {
    /// Messages took places.
    fn admit(&self, waiting: &[Scheduled]);

    /// Nothing that is known here waits before this place.
    fn floor(&self) -> DueKey;
}

/// Where messages are kept. See the [module](self).
pub trait Store: Send + Sync + 'static {
    /// Tells the store whom to tell of places. Called once, before anything else.
    fn attach(&self, due_index: Arc<dyn DueIndex>);

    /// Takes messages. Durable when it answers.
    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>>;

    /// Changes messages. Durable when it answers. The message is answered as it is then; of a replay the
    /// new one.
    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>>;

    /// Claims those that still stand where they stood and are due, in this order. The others are left out.
    fn claim(
        &self,
        waiting: Vec<Scheduled>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>>;

    /// Ends claims.
    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>>;

    /// The waiting messages from a place of the due index on, and before another, at most so many.
    fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Scheduled>, Error>>;

    /// Nothing waits before this place.
    fn floor(&self) -> DueKey;

    /// A message, as it stands.
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>>;

    /// Messages by state, topic and time.
    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>>;

    /// How many there are.
    fn counts(&self) -> Counts;

    /// Forgets idempotency keys and ended messages (not the dead) from before these moments, some of
    /// them; answers whether there may be more.
    fn forget(
        &self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Error>>;

    /// Whether it takes messages; why not.
    ///
    /// # Errors
    /// When it does not.
    fn health(&self) -> Result<(), Error>;

    /// How well it is, for people and probes.
    fn report(&self, health: &mut Health) {
        health.refuses = self.health().err();
        health.has_failed = matches!(health.refuses, Some(Error::Failed(_)));
    }

    /// Lets go of everything. All that was answered is durable then.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    #[test]
    fn the_number_of_a_route_cannot_be_known_outside_of_the_process() {
        let known = xxhash_rust::xxh3::xxh3_64_with_seed(b"a.example", 0);
        let route = Route::of(&Target::callback("http://a.example/"));
        assert_ne!(route.as_u64() >> 1, known & (u64::MAX >> 1));
        assert_eq!(route, Route::of(&Target::callback("http://a.example/")));
    }

    #[test]
    fn a_route_is_a_host_or_a_topic() {
        let route = |url: &str| Route::of(&Target::callback(url));
        assert_eq!(
            route("http://a.example:80/x"),
            route("http://A.example:80?y")
        );
        assert_eq!(route("https://u:p@a.example/x"), route("https://a.example"));
        assert_ne!(route("http://a.example"), route("http://b.example"));
        assert!(!route("http://a.example").is_bus());
        let bus = Route::of(&Target::bus("a.example", "k", "E"));
        assert!(bus.is_bus());
        assert_eq!(bus, Route::of(&Target::bus("a.example", "other", "F")));
    }
}

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
//! | submit, extend, withdraw, replay, purge | it is on stable storage | somebody is told that it happened |
//! | claim | it excludes all other changes | a claim that is lost in a crash repeats an attempt, as the crash itself does |
//! | settle | it is written, not synced | as above: what is lost was done, and is done again |
//!
//! So after a crash a message is where the last durable change left it, and what was firing fires
//! again.
//!
//! # The line
//!
//! Waiting messages stand in [line](Line) by their [`Place`]. The store tells the line of every message that
//! takes a place, after the change is durable and before it is answered. The line keeps the front of it in memory and reads
//! the rest by [`scan`](Store::scan).

pub(crate) mod change;
mod disk;
mod memory;

use std::sync::Arc;

pub use disk::DiskStore;
pub use memory::MemoryStore;

use crate::{
    Accepted, BoxFuture, Counts, Error, Message, MessageId, Page, Query, Schedule, Submission,
    Timestamp, Undelivered, Version,
};

/// Where a waiting message stands in line: by the moment at which it may fire, then in the order in
/// which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// When it may fire.
    pub at: Timestamp,
    /// The number of the message in its store.
    pub serial: u64,
}

impl Place {
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
pub struct Waiting {
    /// Where it stands.
    pub place: Place,
    /// The version that is claimed when it fires.
    pub version: Version,
    /// Where it goes, as a number.
    pub route: Route,
}

/// A destination as a number: one topic of the bus, or one host. Two may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route(u32);

impl Route {
    /// The route of a target.
    #[must_use]
    pub fn of(target: &crate::Target) -> Self {
        let (name, kind) = match target {
            crate::Target::Bus(bus) => (bus.topic.as_str(), 0),
            crate::Target::Callback(callback) => (host(&callback.url), 1),
        };
        let hash = xxhash_rust::xxh3::xxh3_64(name.to_ascii_lowercase().as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "some bits are enough")]
        Self((hash as u32) << 1 | kind)
    }

    /// Whether it leads to the bus.
    #[must_use]
    pub const fn is_bus(self) -> bool {
        self.0 & 1 == 0
    }

    /// A route by its number.
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// The number of the route.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }
}

/// Host and port of an address, as far as they tell one from another.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}

/// A submission that was checked.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What was submitted.
    pub submission: Submission,
    /// When it is due.
    pub due: Timestamp,
    /// Now.
    pub now: Timestamp,
}

/// Something that somebody asks of a message.
#[derive(Clone, Debug)]
pub struct Change {
    /// Of which message.
    pub id: MessageId,
    /// Now.
    pub now: Timestamp,
    /// What.
    pub what: Asked,
}

/// What can be asked of a message.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// To be later.
    Extend(crate::Extend),
    /// To be taken back.
    Withdraw,
    /// To become a new message that is due now; only of a dead one, which is gone then.
    Replay,
    /// To be forgotten; only of one that has ended.
    Purge,
}

/// A message that was claimed: nobody else can change it until it is settled.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Where it stood.
    pub place: Place,
    /// The version that was claimed.
    pub before: Version,
    /// The message, firing.
    pub message: Arc<Message>,
}

/// What became of a claim.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Which one.
    pub claim: Claim,
    /// When it ended.
    pub now: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Delivered.
    Delivered,
    /// Not delivered.
    Failed(Undelivered, Schedule),
    /// It was never tried: the message takes its old place, and nothing is counted.
    Released,
}

/// The front of the line, as a store sees it.
pub trait Line: Send + Sync {
    /// Messages took places.
    fn admit(&self, waiting: &[Waiting]);

    /// Nothing that the line knows of waits before this place.
    fn floor(&self) -> Place;
}

/// Where messages are kept. See the [module](self).
pub trait Store: Send + Sync + 'static {
    /// Tells the store whom to tell of places. Called once, before anything else.
    fn attach(&self, line: Arc<dyn Line>);

    /// Takes messages. Durable when it answers.
    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>>;

    /// Changes messages. Durable when it answers. The message is answered as it is then; of a replay the
    /// new one.
    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>>;

    /// Claims those that still stand where they stood and are due, in this order. The others are left out.
    fn claim(
        &self,
        waiting: Vec<Waiting>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>>;

    /// Ends claims.
    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>>;

    /// Those who stand in line from a place on, and before another, at most so many.
    fn scan(
        &self,
        from: Place,
        until: Place,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Waiting>, Error>>;

    /// Nothing waits before this place.
    fn floor(&self) -> Place;

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

    /// Lets go of everything. All that was answered is durable then.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

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

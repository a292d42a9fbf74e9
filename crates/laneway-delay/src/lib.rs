//! Delayed messages: on time, extendable, withdrawable.
//!
//! A delayed message is due at a moment in the future. Until then it can be moved later
//! ([`extend`](Delays::extend)) or taken back ([`withdraw`](Delays::withdraw)). When it is due it is
//! delivered, by an HTTP callback or to a topic of the bus, and again after failures, until it is
//! delivered or dead.
//!
//! [`Delays`] is the handle to all of it, and [`Sinks`] are the ways out. With the feature `callback`,
//! `callback::Client` is the way out over HTTP.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use laneway_delay::{BoxFuture, Delays, Deliver, Extend, Firing, Options, Sinks, StateName};
//! use laneway_delay::{Submission, Target, Undelivered, When};
//!
//! struct Print;
//!
//! impl Deliver for Print {
//!     fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
//!         println!("{} is due", firing.message.id);
//!         Box::pin(std::future::ready(Ok(())))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), laneway_delay::Error> {
//! // `Delays::open(directory, …)` keeps them on disk.
//! let sinks = Sinks { callbacks: Some(Arc::new(Print)), ..Sinks::default() };
//! let delays = Delays::in_memory(sinks, Options::default())?;
//!
//! let target = Target::callback("https://example.com/reminders");
//! let in_a_minute = When::After(Duration::from_secs(60));
//! let submission = Submission::new("reminders", in_a_minute, target).payload("{\"cart\":17}");
//! let id = delays.submit_one(submission).await?.id;
//!
//! delays.extend(&id, Extend::By(Duration::from_secs(30))).await?;
//! let message = delays.withdraw(&id).await?;
//! assert_eq!(StateName::from(message.record.state()), StateName::Withdrawn);
//! delays.close(Duration::from_secs(1)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What this is not
//!
//! There is no server and no bus in this crate: it knows neither HTTP routes nor brokers. The feature
//! `callback` adds the HTTP client that delivers messages, in the module `callback`; without the feature
//! `file` (on by default) there is no store on disk, and no storage engine is compiled.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`message`] | the record of a message, its states, and the transitions between them; pure |
//! | [`retry`] | how long to wait after the n-th failure, and when to give up; pure |
//! | [`wheel`] | which entries are due, and when to look again; pure |
//! | `engine` | claims what is due and hands it to its sink; slots per host |
//! | [`store`] | where messages are kept, and what is durable when |
//! | [`clock`] | what time it is, also when the clock of the machine is set |
//! | `submission`, `stored`, `query`, `deliver` | what goes in and what comes out |
//! | `planted` | faults of the past, for fault runs |
//! | `supervise` | tasks of the engine are started again when they panic |
//! | `delays` | [`Delays`]: the engine and its store, as users have them |
//! | `callback` | delivery by HTTP, with the guard against SSRF (feature `callback`) |
//! | `health`, `error` | how it is doing, what can go wrong |
//! | `host`, `id`, `timestamp`, `ration` | hosts, ids, points in time, and what is told now and then |
//!
//! # The pure cores
//!
//! Two things decide whether it works, and both are free of I/O: the state machine decides which of two
//! changes that meet wins, so that a message that was withdrawn never fires; the wheel finds what is due
//! at a cost that does not depend on how much waits, and hands out nothing early.
//!
//! A message is scheduled, waits in the wheel, is due, and is claimed for firing. A withdraw that
//! comes after the claim is refused, and the refusal says which state won.
//!
//! ```
//! use std::time::Duration;
//! use laneway_delay::{Record, State, Timestamp, Wheel};
//!
//! let now = Timestamp::from_millis(1_000);
//! let record = Record::scheduled(now + Duration::from_secs(5));
//!
//! let mut wheel = Wheel::new(now);
//! wheel.insert(record.due(), "order-4711");
//!
//! // One millisecond too soon: nothing.
//! assert_eq!(wheel.pop_due(Timestamp::from_millis(5_999)), None);
//!
//! // Due.
//! let now = Timestamp::from_millis(6_000);
//! let entry = wheel.pop_due(now).expect("due now");
//! assert_eq!(entry.value, "order-4711");
//!
//! let firing = record.claim(record.version(), now)?;
//! let refusal = firing.withdraw(firing.version(), now).unwrap_err();
//! assert!(matches!(refusal.state, State::Firing { .. }));
//!
//! let delivered = firing.deliver(firing.version(), now)?;
//! assert_eq!(delivered.state(), State::Delivered { at: now });
//! # Ok::<(), laneway_delay::Refusal>(())
//! ```

#[cfg(feature = "callback")]
pub mod callback;
pub mod clock;
mod delays;
mod deliver;
mod engine;
mod error;
mod health;
mod host;
mod id;
pub mod message;
mod planted;
mod query;
mod ration;
pub mod retry;
pub mod store;
mod stored;
mod submission;
mod supervise;
mod timestamp;
pub mod wheel;

pub use delays::Delays;
pub use deliver::{BoxFuture, Deliver, Firing, Publish, Sinks, Undelivered};
pub use engine::Options;
#[doc(hidden)]
pub use engine::Steps;
pub use error::Error;
pub use health::Health;
pub use id::MessageId;
pub use message::{DeathCause, Failure, Record, Refusal, State, Version};
pub use query::{Counts, Cursor, Page, Query, StateName, TopicCounts};
pub use retry::Schedule;
pub use stored::{Event, HistoryEvent, Message};
pub use submission::{
    Accepted, BusTarget, Callback, Extend, Method, Submission, Target, When, Withdraw,
};
pub use timestamp::Timestamp;
pub use wheel::{Due, Handle, Wheel};

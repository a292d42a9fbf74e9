//! The pure cores that delayed messages are built on.
//!
//! A delayed message is due at a moment in the future. Until then it can be moved later
//! ([`extend`](message::Record::extend)) or taken back ([`withdraw`](message::Record::withdraw)).
//! When it is due it is fired, and fired again after failures, until it is delivered or dead.
//!
//! Two things decide whether that works, and both are here, free of I/O:
//!
//! - **[`message`]**: the state machine. Which change is allowed in which state, and which of two
//!   changes that meet wins. It is the reason why a message that was withdrawn never fires.
//! - **[`wheel`]**: the hierarchical timing wheel. It finds what is due among millions of entries
//!   at a cost that does not depend on how many there are. It is the reason why nothing is early.
//!
//! # What this is not
//!
//! There is no server, no store and no clock in this crate yet. In the pure parts time comes in as an
//! argument ([`Timestamp`]), decisions go out as values. Nothing there can block or fail because of
//! the outside world, so every rule can be tested in memory, without waiting.
//!
//! The feature `callback` adds the HTTP client that delivers messages, in the module `callback`.
//!
//! # Layout
//!
//! | module | what it decides |
//! |---|---|
//! | [`message`] | the record of a message, its states, and the transitions between them |
//! | [`retry`] | how long to wait after the n-th failure, and when to give up |
//! | [`wheel`] | which entries are due, and when to look again |
//! | [`Timestamp`] | a moment: milliseconds since the Unix epoch |
//!
//! # Example
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
pub mod message;
pub mod retry;
mod timestamp;
pub mod wheel;

pub use message::{DeathCause, Failure, Record, Refusal, State, Version};
pub use retry::Schedule;
pub use timestamp::Timestamp;
pub use wheel::{Due, Handle, Wheel};

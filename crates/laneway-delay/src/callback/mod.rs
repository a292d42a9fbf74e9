//! Delivery by HTTP: the client that calls a receiver when its message is due.
//!
//! A callback URL comes from whoever may submit a message, and the request is made from inside the
//! operator's network. So three things stand between a due message and the wire:
//!
//! - [`guard`]: which addresses may be called at all. Public ones, and those that the operator
//!   allows. What was checked is what is connected to.
//! - [`Limits`]: how much of this server one receiver can hold. A host that hangs delays its own
//!   messages and nobody else's.
//! - [`signature`]: how a receiver knows who called (Standard Webhooks).
//!
//! # What an answer means
//!
//! | answer | what follows |
//! |---|---|
//! | 2xx | delivered |
//! | 410 | dead: the receiver never wants it again |
//! | 429, 503 with `Retry-After` | tried again, not before that time (bounded by [`Limits::max_retry_after`]) |
//! | 3xx | failed: redirects are not followed |
//! | anything else, a reset, a time-out, no connection | failed, tried again by the schedule |
//! | the host's circuit is open, or its queue is full | postponed: nothing was sent, no attempt is used up |
//!
//! # The circuit of a host
//!
//! After [`Limits::failures_to_open`] failures in a row (no answer, or 5xx) nothing is sent to the
//! host for a while. Its messages are put off, not used up: a receiver that is down for half an hour must not
//! turn everything that was due meanwhile into dead letters. When the while is over, one message is
//! sent as a probe. Its success closes the circuit, its failure doubles the wait. A message that is
//! [`Limits::max_postponed`] past its due time is not put off any more; it fails and goes its way
//! through the schedule, so that nothing waits for ever for a host that is gone.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | [`guard`] | parses the URL once, checks literals and every resolved address |
//! | [`signature`] | secrets, and the signature over id, time and body |
//! | `client` | one call: headers, time limits, what the answer means |
//! | `headers` | which headers a sender may set |
//! | `answer` | `Retry-After`, and the beginning of a body |
//! | `hosts` | slots and queue of each host |
//! | `breaker` | the circuit of one host, pure |
//! | `trouble` | why a call did not deliver, and what follows |
//!
//! # Example
//!
//! ```
//! use laneway_delay::callback::{Allow, Client, Guard, Limits};
//!
//! let guard = Guard::new("10.1.0.0/16, hooks.internal".parse::<Allow>()?);
//! assert!(guard.check("https://example.com/hook").is_ok());
//! assert!(guard.check("http://10.1.2.3/hook").is_ok());
//! assert!(guard.check("http://0x7f.1/hook").is_err());
//!
//! let client = Client::new(guard, Limits::default(), Vec::new())?;
//! # drop(client);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod breaker;
mod client;
pub mod guard;
mod headers;
mod hosts;
pub mod signature;
mod trouble;

pub use client::{BuildError, Call, Client, Delivered};
pub use guard::{Allow, Guard};
pub use headers::{HeaderError, check_header};
pub use hosts::Limits;
pub use signature::Secret;
pub use trouble::{Next, Trouble};

//! Delivery by HTTP: the client that calls a receiver when its message is due.
//!
//! [`Client`] implements [`Deliver`](crate::Deliver): hand it to [`Sinks`](crate::Sinks) and due messages are called
//! out. A callback URL comes from any client that may submit a message, and the request is made from inside the
//! operator's network. So three things stand between a due message and the wire:
//!
//! - [`guard`], against SSRF: which addresses may be called at all. Public ones, and those that the operator
//!   allows. What was checked is what is connected to.
//! - [`Limits`]: how long a receiver may take, and when its circuit opens. How many calls a host gets at once is the
//!   engine's to decide ([`Options::per_host`](crate::Options::per_host)), so that a host that hangs delays only its own
//!   messages.
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
//! | a circuit of the host is open | postponed: nothing was sent, no attempt is used up |
//!
//! # Circuits
//!
//! After [`Limits::failures_to_open`] calls in a row without an answer (no connection, a reset, a time-out) nothing
//! is sent to the host for a while. After as many answers with 5xx in a row nothing of the *topic* of those messages
//! is sent to that host: it is there, and others may be well served. A time-out counts only if the receiver had a
//! fair time to answer ([`Limits::fair`]): a sender that gives a host a millisecond says nothing about the host.
//!
//! Messages are put off meanwhile, not used up: a receiver that is down for half an hour must not
//! turn everything that was due meanwhile into dead letters. When the while is over, one message is
//! sent as a probe. Its success closes the circuit, its failure doubles the wait. A message that is
//! [`Limits::max_postponed`] past its due time is not put off any more; it fails and goes its way
//! through the schedule, so that nothing waits for ever for a host that is gone.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `deliver` | a due message becomes a call: `impl Deliver for Client` |
//! | `body` | the payload alone, or wrapped in JSON with what is known of the message |
//! | [`guard`] | SSRF: parses the URL once, checks literals and every resolved address |
//! | [`signature`] | secrets, and the signature over id, time and body |
//! | `client` | one call: headers, time limits, what the answer means |
//! | `headers` | which headers a sender may set |
//! | `response` | `Retry-After`, and the beginning of a body |
//! | `limits` | time limits, and when a circuit opens |
//! | `hosts` | which hosts have circuits, and for how long they are remembered |
//! | `circuits` | the circuits of a host |
//! | `breaker` | one circuit, pure |
//! | `keep_alive` | which connections are kept for the next call |
//! | `error` | why a call did not deliver, and what follows |
//! | `connection` | connections to what has passed the guard, bounded in time and memory |
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

mod body;
mod breaker;
mod circuits;
mod client;
mod connection;
mod deliver;
mod error;
pub mod guard;
mod headers;
mod hosts;
mod keep_alive;
mod limits;
mod response;
pub mod signature;

pub use body::Body;
pub use client::{BuildError, Call, Client, Delivered};
pub use error::CallError;
pub use guard::{Allow, Guard};
pub use headers::{HeaderError, check_header};
pub use limits::Limits;
pub use signature::{Secret, Secrets};

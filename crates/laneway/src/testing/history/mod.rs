//! Was every promise kept? A recorder of what happened, and a checker that judges it.
//!
//! A test gives each message a *(key, sequence)*, records what happens to it in a [`History`] and
//! asks [`Rules`] for a [`Verdict`] at the end. The checker is pure: it sees records, never a
//! broker, so the same rules judge the in-memory engine, a log that was killed two hundred times
//! and a cluster that changed owners.
//!
//! # What to record, and when
//!
//! The verdict is exact (no false alarms) if each record is written on the right side of the act:
//!
//! | record | when |
//! |---|---|
//! | [`submitted`](History::submitted) | *before* the message is handed over; a key's messages one after the other |
//! | [`acked`](History::acked) | *after* the promise was received |
//! | [`refused`](History::refused) | after the submitter was told no |
//! | [`started`](History::started) | first thing inside the handler |
//! | [`Run::finish`] | last thing inside the handler; a [`Run`] that is dropped records `Abandoned`, or `Failed` in a panic |
//! | [`finished`](History::finished) | for what ends outside a handler: dead-lettered, parked |
//! | [`settled`](History::settled) | after the settlement is durable |
//! | [`crashed`](History::crashed) | when the owner can do nothing more, before a successor can begin: stop the process (`SIGSTOP`), record, kill it |
//!
//! Sequences grow with the order in which a key was submitted; gaps are fine, so broker offsets
//! will do. Two consumer groups are two histories that share the submissions: record each group
//! apart and chain the records.
//!
//! # Example
//!
//! ```
//! use laneway::testing::history::{Attempt, History, Kind, Outcome, Rules};
//!
//! let history = History::new();
//! for seq in 1..=2 {
//!     history.submitted("order-7", seq);
//!     history.acked("order-7", seq);
//! }
//! // The engine under test would call the handler; this one takes the second message first.
//! for seq in [2, 1] {
//!     let run = history.started("order-7", seq, Attempt::default());
//!     run.finish(Outcome::Done);
//! }
//!
//! let verdict = Rules::exactly_once().check(history.records());
//! assert_eq!(verdict.count(Kind::OutOfOrder), 1);
//! assert!(verdict.to_string().contains("started before sequence 1 was finished"));
//! ```
//!
//! # Across processes
//!
//! A process that will be killed records to a file, a line at a time ([`History::append_to`]); the
//! test reads the union afterwards ([`read`]). Stamps of different processes on one machine
//! compare, to within about a microsecond. A line torn by the kill is skipped.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `event` | what can happen |
//! | `recorder` | [`History`] and [`Run`] |
//! | `lines` | the file format |
//! | `rules` | what is promised |
//! | `index`, `check` | the judge |
//! | `verdict` | what it found |

mod check;
mod event;
mod index;
mod lines;
mod recorder;
mod rules;
mod verdict;

#[cfg(test)]
mod planted;

pub use event::{Attempt, Event, MessageId, Outcome, Record};
pub use lines::{ReadError, read};
pub use recorder::{History, Run};
pub use rules::Rules;
pub use verdict::{Kind, Totals, Verdict, Violation};

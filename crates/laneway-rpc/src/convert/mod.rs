//! Between what goes over the wire and the types of `laneway_delay` and `laneway_cluster`.
//!
//! Whatever comes from the wire is checked: [`Invalid`] names the field. What goes out is always whole. Durations are whole
//! milliseconds on the wire, rounded up.
//!
//! ```
//! use bytes::Bytes;
//! use laneway_cluster::owner::Outcome;
//! use laneway_delay::{Failure, Submission, Target, Undelivered, When};
//! use laneway_rpc::convert::{self, Parts};
//! use laneway_rpc::proto;
//!
//! // The body of a row, and back.
//! let target = Target::callback("https://example.com/reminders");
//! let submission = Submission::new("reminders", When::After(std::time::Duration::ZERO), target);
//! let body: Bytes = convert::body(&Parts::from(submission.payload("{}")));
//! let parts = convert::parts(body)?;
//! assert_eq!(parts.payload, "{}");
//!
//! // How an attempt ended, from the worker to the owner.
//! let undelivered = Undelivered::new(Failure::Permanent, "410 Gone");
//! let outcome = Outcome::try_from(proto::Ending::from(&undelivered))?;
//! assert!(matches!(outcome, Outcome::Failed { is_final: true, .. }));
//! # Ok::<(), convert::Invalid>(())
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `attempt` | gos, questions about attempts, and what workers say to them |
//! | `command` | commands, answers and verdicts |
//! | `content` | target, payload and the rest: the body of a row |
//! | `ending` | how an attempt ended |
//! | `field` | checks of single fields |
//! | `intake` | submits on their way to the owner |
//! | `message` | messages as look-ups and lists show them |

mod attempt;
mod command;
mod content;
mod ending;
mod field;
mod intake;
mod message;
#[cfg(test)]
mod tests;

pub use attempt::{Asked, attempt, firing, go, outcome, settle, status};
pub use command::{Commanded, command, request};
pub use content::{Parts, body, parts};
pub use field::{digest, id, instance, key, millis};
pub use intake::{decode_intake, intake, submit};
pub use message::{Contents, is_gone, message, restore};

/// Something that came from the wire and cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which field, as a path such as `content.callback.method`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// The same, for a field of the field `outer`.
    fn within(self, outer: &str) -> Self {
        let field = format!("{outer}.{}", self.field);
        Self { field, ..self }
    }
}

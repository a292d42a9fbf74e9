use std::error::Error as StdError;

use tonic::{Code, Status};

use crate::CallError;

/// What can go wrong with a connection or a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that was configured cannot be used.
    #[error("{what}: {problem}")]
    Invalid {
        /// Which setting, or which file.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no connection.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>, problem: &impl ToString) -> Self {
        Self::Invalid {
            what: what.into(),
            problem: problem.to_string(),
        }
    }

    /// Whether the same may work later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Invalid { .. } => false,
            Self::Call(error) => error.is_retryable(),
        }
    }
}

/// What a failed connect means.
pub(crate) fn of_transport(error: &tonic::transport::Error) -> CallError {
    unreachable(causes(error))
}

/// What a status means.
pub(crate) fn of_status(status: &Status) -> CallError {
    // The transport's own timer, which runs beside the caller's, was first.
    if is_timeout(status) {
        return CallError::Deadline;
    }
    // The connection broke; what the code says then is a guess.
    if status.source().is_some() {
        return unreachable(causes(status));
    }
    let message = status.message().to_owned();
    match status.code() {
        Code::DeadlineExceeded => CallError::Deadline,
        // So the server's side says it, whose error comes without its source.
        Code::Cancelled if message.contains("Timeout") => CallError::Deadline,
        Code::Unauthenticated | Code::PermissionDenied => CallError::NotTrusted(message),
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented
        | Code::DataLoss => CallError::Refused(message),
        _ => unreachable(message),
    }
}

/// What a center that failed says to its caller.
pub(crate) fn to_status(error: CallError) -> Status {
    match error {
        CallError::Unreachable(text) => Status::unavailable(text),
        CallError::Deadline => Status::deadline_exceeded("no answer in time"),
        CallError::NotTrusted(text) => Status::unauthenticated(text),
        CallError::Refused(text) => Status::failed_precondition(text),
    }
}

fn unreachable(text: String) -> CallError {
    // What rustls says; HTTP/2 hands on the text alone.
    let of_tls = ["invalid peer certificate", "fatal alert", "corrupt message"];
    if of_tls.iter().any(|part| text.contains(part)) {
        CallError::NotTrusted(text)
    } else {
        CallError::Unreachable(text)
    }
}

/// Whether a deadline of the transport is among the causes of an error.
fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .any(<dyn StdError>::is::<tonic::TimeoutExpired>)
}

/// An error and all that it came from.
fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Wrapped(#[source] tonic::TimeoutExpired);

    /// The caller's timer and the transport's end at the same moment: which one is first changes nothing.
    #[test]
    fn a_deadline_of_the_transport_is_a_deadline_however_deep_it_is() {
        let bare = Status::from_error(Box::new(tonic::TimeoutExpired(())));
        assert_eq!(of_status(&bare), CallError::Deadline);
        let wrapped = Status::from_error(Box::new(Wrapped(tonic::TimeoutExpired(()))));
        assert_eq!(of_status(&wrapped), CallError::Deadline);
        let broken = Status::from_error(Box::new(std::io::Error::other("broken pipe")));
        assert!(matches!(of_status(&broken), CallError::Unreachable(_)));
    }
}

use std::time::Duration;

use laneway_cluster::record::{Instance, Key, RequestDigest};
use laneway_delay::MessageId;

use super::Invalid;

/// The id of a message.
///
/// # Errors
/// [`Invalid`] with the name of the field, if it is none.
pub fn id(field: &str, id: &str) -> Result<MessageId, Invalid> {
    MessageId::new(id).map_err(|error| match error {
        laneway_delay::Error::Invalid { problem, .. } => Invalid::new(field, problem),
        other => Invalid::new(field, other.to_string()),
    })
}

/// The digest of a request: 32 bytes.
///
/// # Errors
/// [`Invalid`] with the name of the field, if they are not so many.
pub fn digest(field: &str, bytes: &[u8]) -> Result<RequestDigest, Invalid> {
    array(field, bytes).map(RequestDigest)
}

/// A process: 16 bytes.
///
/// # Errors
/// [`Invalid`] with the name of the field, if they are not so many.
pub fn instance(field: &str, bytes: &[u8]) -> Result<Instance, Invalid> {
    array(field, bytes).map(Instance)
}

/// The key of a command, hashed: 16 bytes.
///
/// # Errors
/// [`Invalid`] with the name of the field, if they are not so many.
pub fn key(field: &str, bytes: &[u8]) -> Result<Key, Invalid> {
    array(field, bytes).map(Key)
}

/// A duration as it goes over the wire: in milliseconds, rounded up, so that nothing is early.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// A field that has to be there.
pub(super) fn required<T>(field: &str, value: Option<T>) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "it is missing, or of a kind that is not known here"))
}

fn array<const N: usize>(field: &str, bytes: &[u8]) -> Result<[u8; N], Invalid> {
    bytes.try_into().map_err(|_| {
        let problem = format!("it has {} bytes and needs {N}", bytes.len());
        Invalid::new(field, problem)
    })
}

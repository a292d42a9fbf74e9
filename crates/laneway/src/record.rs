//! What a broker carries: bytes with a key and headers. What they mean is up to the bus.

use std::sync::Arc;

use bytes::Bytes;
use smol_str::SmolStr;

use crate::headers::Headers;

/// The header by which a broker says that a record cannot be read, and why. Such a record goes to the
/// dead letters, with what there is of it.
pub(crate) const UNREADABLE: &str = "laneway-unreadable";

/// The header with the first bytes, in base64, of the headers of a record that could not be read.
#[cfg(feature = "nats")]
pub(crate) const RAW_HEADERS: &str = "X-Raw-Headers";

/// A record as it is published and stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// What it is kept in order by, and what chooses its partition.
    pub key: Option<SmolStr>,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub payload: Bytes,
    /// When it was published, in milliseconds since 1970.
    pub timestamp_ms: i64,
}

impl Record {
    /// What it counts for in bounds and retention: its bytes, and something for itself.
    #[must_use]
    pub fn size(&self) -> usize {
        const ITSELF: usize = 64;
        ITSELF
            + self.payload.len()
            + self.headers.total_bytes()
            + self.key.as_ref().map_or(0, SmolStr::len)
    }

    /// Why it cannot be read, if its broker says so.
    pub(crate) fn unreadable(&self) -> Option<String> {
        if self.headers.is_empty() {
            return None;
        }
        let reason = self.headers.get(UNREADABLE)?;
        Some(String::from_utf8_lossy(reason).into_owned())
    }
}

/// A record at its place in a partition.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Its place.
    pub offset: u64,
    /// The record. Shared: delivering costs no copy.
    pub record: Arc<Record>,
}

//! Reads the copy of a shard, and finds out whether it is whole.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_cluster::apply::{Head, Identity, Kept};
use laneway_cluster::record::{Chain, RowDigest};
use laneway_delay::MessageId;
use tokio::time::{Instant, timeout_at};

use crate::connection::Redis;
use crate::error::Error;
use crate::keys::{self, Keys, hexadecimal};
use crate::rows::Row;
use crate::script::FORMAT;

/// Rows that are read at once, about.
const PAGE: usize = 128;

/// After this the log is faster.
const WITHIN: Duration = Duration::from_mins(5);

/// Why the copy of a shard is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unused {
    /// There is none.
    #[error("there is no copy")]
    None,
    /// It is being filled, or was left in the middle.
    #[error("the copy is not whole")]
    Partial,
    /// It was written by another version.
    #[error("the copy is of another format")]
    Format,
    /// It is the copy of another log.
    #[error("the copy is that of another log")]
    OtherLog,
    /// Its rows are not those that it should have.
    #[error("the copy has other rows than it should have")]
    OtherRows,
    /// Redis did not answer.
    #[error(transparent)]
    Redis(#[from] Error),
    /// The one who asked wanted no more.
    #[error("it was not wanted any more")]
    Stopped,
}

/// A cursor, and fields with their values.
type Scanned = (u64, Vec<(Vec<u8>, Vec<u8>)>);

/// How far a copy is.
struct Meta {
    at: String,
    head: Head,
}

pub(crate) async fn restore(
    redis: &Arc<Redis>,
    identity: &Identity,
    page: impl FnMut(&Head, Vec<Row>) -> bool,
) -> Result<Head, Unused> {
    let reading = read(redis, identity, page);
    let read = timeout_at(Instant::now() + WITHIN, reading).await;
    read.unwrap_or(Err(Unused::Redis(Error::TimedOut)))
}

async fn read(
    redis: &Redis,
    identity: &Identity,
    mut page: impl FnMut(&Head, Vec<Row>) -> bool,
) -> Result<Head, Unused> {
    let keys = Keys::of(identity);
    let Meta { at, head } = meta(redis, &keys, identity).await?;
    let mut found = Found::default();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(keys.row()).arg(cursor).arg("COUNT").arg(PAGE);
        let (next, pairs): Scanned = redis.ask(&scan).await?;
        let mut rows = Vec::with_capacity(pairs.len());
        for (id, row) in pairs {
            let id = String::from_utf8(id).ok();
            let id = id.and_then(|id| MessageId::new(id).ok());
            let (Some(id), Ok(row)) = (id, Kept::decode(&Bytes::from(row))) else {
                return Err(Unused::OtherRows);
            };
            if found.add(&id, &row) {
                rows.push((id, Arc::new(row)));
            }
        }
        if found.rows > head.rows {
            return Err(Unused::OtherRows);
        }
        if !page(&head, rows) {
            return Err(Unused::Stopped);
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    if (found.rows, found.digest) != (head.rows, head.digest) {
        return Err(Unused::OtherRows);
    }
    let after = meta(redis, &keys, identity).await?;
    if after.at != at {
        return Err(Unused::Partial);
    }
    Ok(head)
}

async fn meta(redis: &Redis, keys: &Keys, identity: &Identity) -> Result<Meta, Unused> {
    let mut ask = redis::cmd("HMGET");
    ask.arg(keys.meta());
    for field in ["identity", "format", "whole", "at", "head", "check"] {
        ask.arg(field);
    }
    let fields: Vec<Option<Vec<u8>>> = redis.ask(&ask).await?;
    let [found, format, whole, at, head, check] = &fields[..] else {
        return Err(Unused::None);
    };
    let Some(found) = found else {
        return Err(Unused::None);
    };
    if found != keys::identity(identity).as_bytes() {
        return Err(Unused::OtherLog);
    }
    if whole.as_deref() != Some(b"1") {
        return Err(Unused::Partial);
    }
    if format.as_deref() != Some(FORMAT.to_string().as_bytes()) {
        return Err(Unused::Format);
    }
    let (Some(at), Some(head), Some(check)) = (at, head, check) else {
        return Err(Unused::OtherRows);
    };
    let head = Bytes::copy_from_slice(head);
    if hexadecimal(&Chain::START.then(&head).0).as_bytes() != &check[..] {
        return Err(Unused::OtherRows);
    }
    let head = Head::decode(&head).map_err(|_| Unused::Format)?;
    if head.identity != *identity {
        return Err(Unused::OtherLog);
    }
    // Between `open` and `close` the digest does not cover all rows.
    if !head.is_complete || head.without_image > 0 || head.stopped().is_some() {
        return Err(Unused::Partial);
    }
    let at = String::from_utf8_lossy(at).into_owned();
    if at != head.next.to_string() {
        return Err(Unused::OtherRows);
    }
    Ok(Meta { at, head })
}

/// What was read so far. A scan may answer a row twice.
struct Found {
    seen: HashSet<u64>,
    rows: u64,
    digest: RowDigest,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            seen: HashSet::new(),
            rows: 0,
            digest: RowDigest::EMPTY,
        }
    }
}

impl Found {
    /// Whether it is new. Two ids that look the same here make a copy that is not used, which is all.
    fn add(&mut self, id: &MessageId, row: &Kept) -> bool {
        let mut hasher = DefaultHasher::new();
        id.as_str().hash(&mut hasher);
        let is_new = self.seen.insert(hasher.finish());
        if is_new {
            self.rows += 1;
            self.digest = self.digest.with(row.digest(id));
        }
        is_new
    }
}

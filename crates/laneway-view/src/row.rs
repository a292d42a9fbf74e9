//! Rows as a view keeps them: the body apart from the rest, so that a change does not write it again, and lists
//! need not read it.

use std::sync::Arc;

use bytes::Bytes;
use laneway_cluster::apply::Kept;

use crate::error::Error;

const CHECK: usize = 16;

/// Which body a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyMark {
    pub(crate) bytes: u64,
    check: [u8; CHECK],
}

impl BodyMark {
    /// The mark of a body; `None` if there is none.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        let mut check = [0; CHECK];
        check.copy_from_slice(&blake3::hash(body).as_bytes()[..CHECK]);
        let bytes = body.len() as u64;
        (!body.is_empty()).then_some(Self { bytes, check })
    }
}

/// A row without its body.
#[derive(Clone, Debug)]
pub(crate) struct Bare {
    /// Its body is empty.
    pub(crate) kept: Arc<Kept>,
    pub(crate) body: Option<BodyMark>,
    /// As it is stored.
    pub(crate) encoded: Bytes,
}

impl Bare {
    pub(crate) fn of(row: &Kept) -> Self {
        let body = BodyMark::of(&row.image.body);
        let mut kept = row.clone();
        kept.image.body = Bytes::new();
        let mark = body.unwrap_or(BodyMark {
            bytes: 0,
            check: [0; CHECK],
        });
        let row = kept.encode();
        let mut encoded = Vec::with_capacity(8 + CHECK + row.len());
        encoded.extend_from_slice(&mark.bytes.to_le_bytes());
        encoded.extend_from_slice(&mark.check);
        encoded.extend_from_slice(&row);
        Self {
            kept: Arc::new(kept),
            body,
            encoded: encoded.into(),
        }
    }

    pub(crate) fn read(encoded: Bytes, what: impl Fn() -> String) -> Result<Self, Error> {
        let short = || Error::damaged(what(), "it is too short");
        let (bytes, rest) = encoded.split_first_chunk::<8>().ok_or_else(short)?;
        let (check, _) = rest.split_first_chunk::<CHECK>().ok_or_else(short)?;
        let (bytes, check) = (u64::from_le_bytes(*bytes), *check);
        let body = (bytes > 0).then_some(BodyMark { bytes, check });
        let kept = Kept::decode(&encoded.slice(8 + CHECK..)).map_err(|source| {
            let what = what();
            Error::Stored { what, source }
        })?;
        Ok(Self {
            kept: Arc::new(kept),
            body,
            encoded,
        })
    }

    /// About what the row takes in a log when it is carried.
    pub(crate) fn bytes(&self) -> u64 {
        self.encoded.len() as u64 + self.body.map_or(0, |body| body.bytes)
    }

    /// The row with its body.
    pub(crate) fn with(&self, body: Bytes) -> Arc<Kept> {
        if body.is_empty() {
            return self.kept.clone();
        }
        let mut kept = (*self.kept).clone();
        kept.image.body = body;
        Arc::new(kept)
    }
}

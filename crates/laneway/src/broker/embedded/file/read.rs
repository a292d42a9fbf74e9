//! Reading records from the engine.

use std::sync::Arc;

use super::engine::Engine;
use super::fault;
use super::row::{Row, Run};
use super::state::{LogState, Mark};
use crate::broker::BrokerError;
use crate::record::Delivered;

/// How much is read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) records: usize,
    /// Decoded, about; the first record is read whatever its size.
    pub(super) bytes: usize,
}

/// Up to `most` records from `from` on, or from the oldest there is.
pub(super) fn records(
    engine: &Engine,
    identity: u64,
    log: &LogState,
    from: u64,
    most: Most,
) -> Result<Vec<Delivered>, BrokerError> {
    let Most {
        records: most,
        bytes: most_bytes,
    } = most;
    let mut read = Vec::new();
    let mut bytes = 0;
    let mut next = from;
    while read.len() < most && bytes < most_bytes {
        let contents = log.lock();
        next = next.max(contents.start.offset);
        let found = contents.span_of(next);
        drop(contents);
        let Some((span, until)) = found.filter(|(_, until)| next < *until) else {
            break;
        };
        let before = next;
        let result = rows(engine, identity, log, span.segment, next, |row| {
            for record in row.records(next) {
                let (offset, record) =
                    record.map_err(|error| damaged(log, next, error.to_string()))?;
                if offset >= until || read.len() == most || bytes >= most_bytes {
                    return Ok(false);
                }
                bytes += record.size();
                next = offset + 1;
                read.push(Delivered {
                    offset,
                    record: Arc::new(record),
                });
            }
            Ok(next < until && read.len() < most && bytes < most_bytes)
        });
        // Records may be taken away, or moved, while they are looked for.
        let contents = log.lock();
        let is_stale = contents.start.offset > next
            || contents.span_of(next).is_some_and(|(now, _)| now != span);
        drop(contents);
        match result {
            Err(_) if is_stale => {}
            // What comes before it is good.
            Err(_) if !read.is_empty() => break,
            Err(error) => return Err(error),
            Ok(()) if next == before && !is_stale => {
                return Err(damaged(log, next, "it is missing".to_owned()));
            }
            Ok(()) => {}
        }
    }
    Ok(read)
}

/// Up to `most` records from `from` on, of those that are in memory.
pub(super) fn cached(
    log: &LogState,
    runs: &[Arc<Run>],
    from: u64,
    most: Most,
) -> Result<Vec<Delivered>, BrokerError> {
    let Most {
        records: most,
        bytes: most_bytes,
    } = most;
    let mut read = Vec::new();
    let mut bytes = 0;
    for record in runs.iter().flat_map(|run| run.records(from)) {
        if read.len() == most || bytes >= most_bytes {
            break;
        }
        let (offset, record) = record.map_err(|error| damaged(log, from, error.to_string()))?;
        bytes += record.size();
        read.push(Delivered {
            offset,
            record: Arc::new(record),
        });
    }
    Ok(read)
}

/// The mark at `offset`: what all records before it count for.
pub(super) fn mark(
    engine: &Engine,
    identity: u64,
    log: &LogState,
    offset: u64,
) -> Result<Mark, BrokerError> {
    let contents = log.lock();
    if offset >= contents.end.offset {
        return Ok(contents.end);
    }
    if offset <= contents.start.offset {
        return Ok(contents.start);
    }
    let span = contents.span_of(offset);
    drop(contents);
    let missing = || damaged(log, offset, "it is missing".to_owned());
    let (span, _) = span.ok_or_else(missing)?;
    let mut size = None;
    rows(engine, identity, log, span.segment, offset, |row| {
        let mut before = row.head.size_before;
        for record in row.records(0) {
            let (at, record) = record.map_err(|error| damaged(log, offset, error.to_string()))?;
            if at == offset {
                size = Some(before);
            }
            before += record.size() as u64;
        }
        Ok(false)
    })?;
    Ok(Mark {
        offset,
        size: size.ok_or_else(missing)?,
    })
}

/// Hands over the rows of a segment from the one with `from` on, until `each` has enough.
fn rows(
    engine: &Engine,
    identity: u64,
    log: &LogState,
    segment: u32,
    from: u64,
    mut each: impl FnMut(Row<'_>) -> Result<bool, BrokerError>,
) -> Result<(), BrokerError> {
    let mut next = from;
    for row in engine.rows(log.topic.id, segment, log.partition, from) {
        let (key, value) = row
            .into_inner()
            .map_err(|error| fault::reading(|| place(log, next), error))?;
        let row =
            Row::decode(&value, identity).map_err(|error| damaged(log, next, error.to_string()))?;
        let head = row.head;
        let is_ours = head.topic == log.topic.id && head.partition == log.partition;
        let is_next = head.first <= next && next < head.end();
        if !is_ours || !key.ends_with(&(head.end() - 1).to_be_bytes()) {
            let detail = "another row is in its place".to_owned();
            return Err(damaged(log, next, detail));
        }
        if !is_next {
            return Err(damaged(log, next, "it is missing".to_owned()));
        }
        next = head.end();
        if !each(row)? {
            break;
        }
    }
    Ok(())
}

fn place(log: &LogState, offset: u64) -> String {
    fault::place(&log.topic.name, log.partition, offset)
}

fn damaged(log: &LogState, offset: u64, detail: String) -> BrokerError {
    BrokerError::Damaged {
        what: place(log, offset),
        detail,
    }
}

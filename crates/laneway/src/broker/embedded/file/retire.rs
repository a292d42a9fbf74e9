//! Gives back the space of records that are gone.
//!
//! Segments in which nothing is left are dropped as a whole. A partition that gets few records may
//! hold on to many old segments, each of them nearly empty; those are moved together into one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Shared;
use super::engine::Engine;
use super::fault;
use super::request::{Alone, Request, Together};
use super::state::{LogState, TopicState};
use crate::broker::BrokerError;

/// Fewer sparse segments are left alone: moving them would gain little.
const ENOUGH_SPARSE: usize = 4;

/// The records of a log that leave a segment.
pub(super) struct Moved {
    pub(super) log: Arc<LogState>,
    /// Where their span begins.
    pub(super) span: u64,
    /// Their rows, each with its last offset.
    pub(super) rows: Vec<(u64, Vec<u8>)>,
}

/// Frees what can be freed of a topic. Several at a time are harmless.
pub(super) async fn sweep(
    shared: &Arc<Shared>,
    topic: &Arc<TopicState>,
) -> Result<(), BrokerError> {
    let sparse = sparse_segments(shared, topic);
    if sparse.len() >= ENOUGH_SPARSE {
        gather(shared, topic, sparse).await?;
    }
    let dead = dead_ranges(shared, topic);
    if dead == topic.segments.lock().dropped {
        return Ok(());
    }
    // IMPORTANT: what says that the records are gone must be durable before they are.
    sync(shared).await?;
    let of = topic.clone();
    let failed = {
        let name = topic.name.clone();
        move |error| fault::reading(|| format!("topic {name}"), error)
    };
    let failed_too = failed.clone();
    shared
        .with_engine(move |engine, _| {
            for &(first, end) in &dead {
                if engine.has_rows(of.id, first, end) {
                    engine.drop_segments(of.id, first, end).map_err(&failed)?;
                }
            }
            of.segments.lock().dropped = dead;
            Ok(())
        })
        .await?;
    sync(shared).await?;
    shared
        .with_engine(move |engine, _| engine.remove_dropped().map_err(failed_too))
        .await
}

/// Makes all durable that was written.
async fn sync(shared: &Shared) -> Result<(), BrokerError> {
    shared
        .ask(0, |ack, _| Request::Together(Together::Sync(ack)))
        .await
}

/// What is left in each segment, of those in which anything is.
fn live_segments(shared: &Shared, topic: &TopicState) -> BTreeMap<u32, u64> {
    let mut live = BTreeMap::new();
    let logs = shared.topics.lock().logs_of(topic.id);
    for log in logs {
        for (span, left) in log.lock().live_spans() {
            *live.entry(span.segment).or_default() += left;
        }
    }
    live
}

/// Ranges of segments in which nothing is left. The two latest segments are never among them: part
/// of them may be in memory only, and would come back.
fn dead_ranges(shared: &Shared, topic: &TopicState) -> Vec<(u32, u32)> {
    let current = topic.segments.lock().current();
    let mut used: BTreeSet<u32> = live_segments(shared, topic).into_keys().collect();
    used.extend([current.saturating_sub(1), current]);
    let mut dead = Vec::new();
    let mut next = 0;
    for segment in used {
        if segment > next {
            dead.push((next, segment));
        }
        next = segment + 1;
    }
    dead
}

/// Segments of which little is left, the oldest first; together they fill about one.
fn sparse_segments(shared: &Shared, topic: &TopicState) -> BTreeSet<u32> {
    let current = topic.segments.lock().current();
    let limits = &shared.limits;
    let mut sum = 0;
    live_segments(shared, topic)
        .into_iter()
        .filter(|(segment, left)| *segment + 1 < current && *left < limits.sparse())
        .map_while(|(segment, left)| {
            sum += left;
            (sum <= limits.segment).then_some(segment)
        })
        .collect()
}

/// Moves what is left in some segments into one.
async fn gather(
    shared: &Arc<Shared>,
    topic: &Arc<TopicState>,
    segments: BTreeSet<u32>,
) -> Result<(), BrokerError> {
    let logs = shared.topics.lock().logs_of(topic.id);
    let moved = shared
        .with_engine(move |engine, _| {
            let mut moved = Vec::new();
            for log in logs {
                collect(engine, &log, &segments, &mut moved)?;
            }
            Ok(moved)
        })
        .await?;
    let topic = topic.clone();
    shared
        .ask(0, |ack, _| Request::Alone(Alone::Move(topic, moved, ack)))
        .await
}

fn collect(
    engine: &Engine,
    log: &Arc<LogState>,
    segments: &BTreeSet<u32>,
    moved: &mut Vec<Moved>,
) -> Result<(), BrokerError> {
    let contents = log.lock();
    let start = contents.start.offset;
    // A span without a live row would be moved without one, and a log whose last span has no row has no end.
    let spans: Vec<_> = contents
        .live_spans()
        .filter(|(span, _)| segments.contains(&span.segment))
        .filter_map(|(span, _)| contents.span_of(span.first.offset))
        .collect();
    drop(contents);
    for (span, until) in spans {
        let from = span.first.offset.max(start);
        let mut rows = Vec::new();
        for row in engine.rows(log.topic.id, span.segment, log.partition, from) {
            let (key, value) = row.into_inner().map_err(|error| {
                fault::reading(|| fault::place(&log.topic.name, log.partition, from), error)
            })?;
            let last = key
                .last_chunk()
                .map_or(u64::MAX, |last| u64::from_be_bytes(*last));
            if last >= until {
                break;
            }
            rows.push((last, value.to_vec()));
        }
        moved.push(Moved {
            log: log.clone(),
            span: span.first.offset,
            rows,
        });
    }
    Ok(())
}

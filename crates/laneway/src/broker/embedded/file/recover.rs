//! From what is on disk to what is known in memory.

use std::collections::BTreeMap;

use laneway_disk::planted;

use super::catalog::{self, Key};
use super::engine::Engine;
use super::fault;
use super::limits::FileLimits;
use super::row::Row;
use super::state::{Contents, Mark, Segments, Span};
use crate::broker::BrokerError;
use crate::settle::Position;
use crate::topic::Topic;

/// What a store holds.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// The last synced commit.
    pub(super) commit: u64,
    pub(super) next_topic: u32,
    pub(super) topics: BTreeMap<u32, Topic>,
    /// By topic and partition.
    pub(super) logs: BTreeMap<(u32, u32), Contents>,
    /// Where new records of a topic go.
    pub(super) segments: BTreeMap<u32, Segments>,
}

impl Recovered {
    pub(super) fn read(
        engine: &Engine,
        identity: u64,
        limits: &FileLimits,
    ) -> Result<Self, BrokerError> {
        let mut found = Self::default();
        for row in engine.catalog() {
            let (key, value) = row
                .into_inner()
                .map_err(|error| fault::reading(|| "the catalog".to_owned(), error))?;
            found.take_in(&key, &value, identity)?;
        }
        // What is left of topics that were removed.
        let topics = &found.topics;
        found
            .logs
            .retain(|(topic, _), _| topics.contains_key(topic));
        for ((topic, partition), contents) in &mut found.logs {
            let name = topics[topic].name();
            let Some(span) = contents.spans.back() else {
                contents.end = contents.start;
                continue;
            };
            let end = end_of(engine, identity, *topic, *partition, *span);
            let end = end.map_err(|detail| {
                damaged(fault::place(name, *partition, span.first.offset), detail)
            })?;
            // Earlier versions kept the last span of a log of which retention had taken everything, and moved it
            // into a segment without a row. Such a log ends where it starts, and has no span now.
            let was_emptied = contents.start.offset > span.first.offset && !planted("A1");
            contents.end = match end {
                Some(end) => end,
                None if was_emptied => {
                    contents.spans.clear();
                    contents.start
                }
                None => {
                    let place = fault::place(name, *partition, span.first.offset);
                    return Err(damaged(place, "it is missing".to_owned()));
                }
            };
            if contents.start > contents.end {
                let place = fault::place(name, *partition, contents.start.offset);
                return Err(damaged(place, "it is missing".to_owned()));
            }
        }
        let segments = found.topics.keys().map(|topic| {
            let segments = found.segments_of(engine, *topic, limits.segment)?;
            Ok((*topic, segments))
        });
        found.segments = segments.collect::<Result<_, BrokerError>>()?;
        Ok(found)
    }

    fn take_in(&mut self, key: &[u8], value: &[u8], identity: u64) -> Result<(), BrokerError> {
        let broken = || {
            damaged(
                "the catalog".to_owned(),
                format!("row {}", key.escape_ascii()),
            )
        };
        let value = catalog::unsealed(key, value, identity).ok_or_else(broken)?;
        match Key::decode(key).map_err(|_| broken())? {
            Key::Commit => [self.commit] = numbers(value).ok_or_else(broken)?,
            Key::NextTopic => {
                let [next] = numbers(value).ok_or_else(broken)?;
                self.next_topic = u32::try_from(next).map_err(|_| broken())?;
            }
            Key::Topic(id) => {
                let topic = serde_json::from_slice(value).map_err(|_| broken())?;
                self.topics.insert(id, topic);
            }
            Key::Start(topic, partition) => {
                let [offset, size] = numbers(value).ok_or_else(broken)?;
                self.log(topic, partition).start = Mark { offset, size };
            }
            Key::Span(topic, partition, offset) => {
                let [segment, size] = numbers(value).ok_or_else(broken)?;
                let span = Span {
                    first: Mark { offset, size },
                    segment: u32::try_from(segment).map_err(|_| broken())?,
                };
                // The catalog is read in the order of its keys.
                self.log(topic, partition).spans.push_back(span);
            }
            Key::Position(topic, partition, group) => {
                let position = Position::decode(value).map_err(|_| broken())?;
                self.log(topic, partition).positions.insert(group, position);
            }
        }
        Ok(())
    }

    fn log(&mut self, topic: u32, partition: u32) -> &mut Contents {
        self.logs.entry((topic, partition)).or_default()
    }

    /// The highest segment of a topic, and what is in it. `limit` bytes fill one.
    fn segments_of(
        &self,
        engine: &Engine,
        topic: u32,
        limit: u64,
    ) -> Result<Segments, BrokerError> {
        let (mut highest, mut size) = (0, 0);
        for (_, log) in self.logs.range((topic, 0)..=(topic, u32::MAX)) {
            for (span, live) in log.live_spans() {
                if span.segment > highest {
                    (highest, size) = (span.segment, 0);
                }
                if span.segment == highest {
                    size += live;
                }
            }
        }
        // Rows of which no span tells any more may be above, and must not get new ones among them.
        let above = engine.highest_segment(topic).map_err(|error| {
            fault::reading(|| format!("topic {}", self.topics[&topic].name()), error)
        })?;
        Ok(match above {
            Some(above) if above > highest => Segments::resume(above + 1, 0, limit),
            _ => Segments::resume(highest, size, limit),
        })
    }
}

/// Where the last row of a log ends; `None` if there is none.
fn end_of(
    engine: &Engine,
    identity: u64,
    topic: u32,
    partition: u32,
    span: Span,
) -> Result<Option<Mark>, String> {
    let mut rows = engine.rows(topic, span.segment, partition, span.first.offset);
    let Some(last) = rows.next_back() else {
        return Ok(None);
    };
    let (_, value) = last.into_inner().map_err(|error| error.to_string())?;
    let row = Row::decode(&value, identity).map_err(|error| error.to_string())?;
    Ok(Some(Mark {
        offset: row.head.end(),
        size: row.head.size_before.saturating_add(row.head.size),
    }))
}

fn numbers<const N: usize>(value: &[u8]) -> Option<[u64; N]> {
    catalog::read_numbers(value).ok()
}

fn damaged(what: String, detail: String) -> BrokerError {
    BrokerError::Damaged { what, detail }
}

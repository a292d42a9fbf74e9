//! From what is on disk to what is known in memory.

use std::collections::BTreeMap;

use super::catalog::{self, Key};
use super::engine::Engine;
use super::fault;
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
}

impl Recovered {
    pub(super) fn read(engine: &Engine, identity: u64) -> Result<Self, BrokerError> {
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
            contents.end =
                end_of(engine, identity, *topic, *partition, *span).map_err(|detail| {
                    damaged(fault::place(name, *partition, span.first.offset), detail)
                })?;
            if contents.start > contents.end {
                let place = fault::place(name, *partition, contents.start.offset);
                return Err(damaged(place, "it is missing".to_owned()));
            }
        }
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

    /// The highest segment of a topic, and what is in it.
    pub(super) fn segments(&self, topic: u32) -> Segments {
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
        Segments::resume(highest, size)
    }
}

/// Where the last row of a log ends.
fn end_of(
    engine: &Engine,
    identity: u64,
    topic: u32,
    partition: u32,
    span: Span,
) -> Result<Mark, String> {
    let mut rows = engine.rows(topic, span.segment, partition, span.first.offset);
    let last = rows.next_back().ok_or("it is missing")?;
    let (_, value) = last.into_inner().map_err(|error| error.to_string())?;
    let row = Row::decode(&value, identity).map_err(|error| error.to_string())?;
    Ok(Mark {
        offset: row.head.end(),
        size: row.head.size_before.saturating_add(row.head.size),
    })
}

fn numbers<const N: usize>(value: &[u8]) -> Option<[u64; N]> {
    catalog::read_numbers(value).ok()
}

fn damaged(what: String, detail: String) -> BrokerError {
    BrokerError::Damaged { what, detail }
}

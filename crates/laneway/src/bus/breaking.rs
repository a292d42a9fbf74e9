//! What fault runs do that no user does.

use super::Bus;
use super::error::Error;
use crate::record::Delivered;
use crate::settle::Position;
use crate::topic::TopicName;

/// As long as the name of a group can be on disk, about.
const LONG: usize = 60_000;

/// Writes so many bytes of positions to a topic, about, in the name of a group that reads nothing: what a group does to the disk
/// that works off a backlog for hours while nobody publishes. Its name is what takes most of them.
///
/// # Errors
/// When the topic does not exist, or the broker fails.
pub async fn write_positions(bus: &Bus, topic: &str, bytes: u64) -> Result<(), Error> {
    let topic = TopicName::new(topic)?;
    let group = "g".repeat(LONG);
    for _ in 0..bytes.div_ceil(LONG as u64) {
        let saving = bus.shared.broker.settle(&topic, 0, &group, Position::at(1));
        bus.ask("writing positions", saving).await?;
    }
    Ok(())
}

/// All records of a partition that are there.
///
/// # Errors
/// When the topic does not exist, or the broker cannot read it.
pub async fn contents(bus: &Bus, topic: &str, partition: u32) -> Result<Vec<Delivered>, Error> {
    let topic = TopicName::new(topic)?;
    loop {
        let all = read_all(bus, &topic, partition).await?;
        let first = bus.shared.broker.peek(&topic, partition, 0, 1);
        let first = bus.ask("reading", first).await?;
        // Retention took none of it meanwhile, so all of it was there at one moment.
        if first.first().map(|first| first.offset) == all.first().map(|first| first.offset) {
            return Ok(all);
        }
    }
}

async fn read_all(bus: &Bus, topic: &TopicName, partition: u32) -> Result<Vec<Delivered>, Error> {
    let mut all = Vec::<Delivered>::new();
    loop {
        let next = all.last().map_or(0, |last| last.offset + 1);
        let reading = bus.shared.broker.peek(topic, partition, next, 1000);
        let some = bus.ask("reading", reading).await?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// What a group has settled in a partition.
///
/// # Errors
/// When the topic does not exist, or the broker fails.
pub async fn position(
    bus: &Bus,
    topic: &str,
    partition: u32,
    group: &str,
) -> Result<Option<Position>, Error> {
    let topic = TopicName::new(topic)?;
    let asking = bus.shared.broker.position(&topic, partition, group);
    bus.ask("asking for a position", asking).await
}

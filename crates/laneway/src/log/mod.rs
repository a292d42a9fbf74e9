//! Partitions as logs of raw records: append in order, follow, read one, trim.
//!
//! A [`Log`] is for programs that keep their decisions in a log and rebuild their state from it. Its topic is durable and
//! has no retention: nothing goes but by [`Log::trim`]. A record is bytes; what others have written to the topic comes
//! through as its bytes, too. There are no groups, no keys, no retries and no dead letters: that is the [`Bus`].
//!
//! ```
//! use bytes::Bytes;
//! use laneway::Bus;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bus = Bus::open("memory:").await?;
//! let log = bus.log("decisions", 4).await?;
//! let mut follower = log.follow(2, log.bounds(2).await?.start);
//! let offset = log.append(2, vec![Bytes::from("one"), Bytes::from("two")]).await?;
//! let records = follower.next().await?;
//! assert_eq!(records[1], (offset, Bytes::from("two")));
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - Records of one append are in their order, next to each other as far as this process writes them. Appends of one
//!   [`Log`] and its clones to one partition take turns: what was called first is written first.
//! - An append that resolved is durable. One that failed has an outcome that is not known, if [`Error::is_unknown`] says
//!   so; records of it may turn up later. The caller has to recognise them, and may append them again.
//! - A [`Follower`] gives every record from its offset on, in order, across restarts of the broker. It never skips or
//!   begins anew silently: what it cannot give is a [`Fault`].
//! - Offsets grow. On NATS they have gaps, since the partitions of a topic share them; on the others they are dense.
//!
//! # Brokers
//!
//! | broker | offset | trim | identity |
//! |---|---|---|---|
//! | `memory:`, `file:` | dense | removes the records, as retention does | drawn when the log is opened first |
//! | NATS | sequence of the stream | purges the subject of the partition | when the stream was made |
//! | Kafka | dense, but for markers of transactions | `DeleteRecords` | the birth of the topic in the catalog |
//!
//! A Kafka topic that other tools delete and make anew within a second keeps its birth. A follower says so all the same if
//! the new topic has not reached its offset.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`Log`], and how it is opened |
//! | `follower` | reads a partition |
//! | `error` | what can go wrong, and whether something was written then |

mod error;
mod follower;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;

pub use self::error::Error;
pub use self::follower::Follower;
pub use crate::broker::log::Fault;

use crate::Bus;
use crate::broker::Broker;
use crate::broker::log::LogPartition;
use crate::bus::LogAccess;
use crate::record::Record;
use crate::time::now_ms;
use crate::topic::{Retention, Storage, Strategy, Topic, TopicName};

/// The largest record where the broker has no limit of its own.
const LARGEST_ANYWHERE: usize = 64 << 20;

/// What a broker needs for itself of the largest message that it takes.
const OF_BROKER: usize = 1024;

/// A topic whose partitions are logs. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    access: LogAccess,
    topic: TopicName,
    identity: String,
    largest: usize,
    /// Held while records are appended to a partition.
    turns: Vec<Mutex<()>>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("topic", &self.shared.topic)
            .field("identity", &self.shared.identity)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Opens a topic as a log; makes it if it is not there. It is durable and has no retention.
    ///
    /// # Errors
    /// When the topic exists with another number of partitions or with settings under which it may lose records (both
    /// sides are named), when the strategy of the bus creates no topics, or when the broker fails.
    pub async fn log(&self, topic: &str, partitions: u32) -> Result<Log, Error> {
        let access = self.log_access();
        access.check_open()?;
        let topic = Topic::plain(topic)
            .storage(Storage::File)
            .retention(Retention::FOREVER)
            .partitions(partitions)
            .build()?;
        let strategy = match access.strategy() {
            Strategy::CreateOnly | Strategy::CreateOrUpdate => Strategy::CreateOnly,
            Strategy::ValidateOnly | Strategy::Skip => Strategy::ValidateOnly,
        };
        let opening = access.broker().logs().open(&topic, strategy);
        let identity = access.ask("opening a log", opening).await?;
        let largest = largest(&**access.broker());
        Ok(Log {
            shared: Arc::new(Shared {
                access,
                topic: topic.name().clone(),
                identity,
                largest,
                turns: topic.partitions().iter().map(|_| Mutex::new(())).collect(),
            }),
        })
    }
}

fn largest(broker: &dyn Broker) -> usize {
    let most = broker.largest();
    most.map_or(LARGEST_ANYWHERE, |most| most.saturating_sub(OF_BROKER))
}

impl Log {
    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.shared.topic
    }

    /// How many partitions it has.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        u32::try_from(self.shared.turns.len()).unwrap_or(u32::MAX)
    }

    /// What the broker calls this very topic. One of the same name that is made anew has another identity.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// The largest record that it takes, in bytes.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.shared.largest
    }

    /// Appends records to a partition, in order and behind all that are there; answers the offset of the last one. They
    /// are durable when this resolves. Of no records, answers the offset behind the last one that is there.
    ///
    /// A caller that gives up does not know the outcome, as with [`Error::Unknown`].
    ///
    /// # Errors
    /// [`Error::Unknown`] if records may have been sent. Any other error: none was written.
    pub async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<u64, Error> {
        let Shared {
            access,
            topic,
            largest,
            ..
        } = &*self.shared;
        let turn = self.turn(partition)?;
        access.check_open()?;
        let too_large = |record: &Bytes| record.len() > *largest;
        if let Some(index) = records.iter().position(too_large) {
            return Err(Error::TooLarge {
                index,
                size: records[index].len(),
                most: *largest,
            });
        }
        let count = records.len();
        if count == 0 {
            return Ok(self.bounds(partition).await?.end);
        }
        let records = records.into_iter().map(|payload| Record {
            payload,
            timestamp_ms: now_ms(),
            ..Record::default()
        });
        let records = records.collect();
        let turn = access.ask("waiting for earlier appends", async {
            Ok::<_, crate::Error>(turn.lock().await)
        });
        let _turn = turn.await?;
        let appending = access.broker().publish(topic, partition, records);
        let appended = access.ask("appending to a log", appending).await;
        let offsets = appended.map_err(|error| Error::of_append(error, count))?;
        Ok(offsets.at(count - 1))
    }

    /// The first offset that a partition has, and the one behind its last, by the word of its leader: what any process
    /// has appended before this was called is within. Both are the same if there are no records.
    ///
    /// # Errors
    /// When there is no such partition, the topic is another one, or the broker fails.
    pub async fn bounds(&self, partition: u32) -> Result<Range<u64>, Error> {
        let Shared { access, topic, .. } = &*self.shared;
        self.check(partition).await?;
        let asking = access.broker().logs().bounds(topic, partition);
        Ok(access.ask("asking for the bounds of a log", asking).await?)
    }

    /// The record at an offset; nothing if there is none at this very offset.
    ///
    /// # Errors
    /// As [`bounds`](Self::bounds).
    pub async fn read(&self, partition: u32, offset: u64) -> Result<Option<Bytes>, Error> {
        let Shared { access, topic, .. } = &*self.shared;
        self.check(partition).await?;
        let reading = access.broker().peek(topic, partition, offset, 1);
        let found = access.ask("reading a record of a log", reading).await?;
        let record = found.into_iter().find(|found| found.offset == offset);
        Ok(record.map(|found| found.record.payload.clone()))
    }

    /// Reads a partition from an offset on. Nothing is asked of the broker before [`Follower::next`].
    #[must_use]
    pub fn follow(&self, partition: u32, from: u64) -> Follower {
        Follower::new(self.clone(), partition, from)
    }

    /// Removes the records of a partition that are before an offset. The others, and those of other partitions, stay.
    /// An offset behind the end counts as the end.
    ///
    /// # Errors
    /// As [`bounds`](Self::bounds); some of them may have been removed then.
    pub async fn trim(&self, partition: u32, before: u64) -> Result<(), Error> {
        let Shared { access, topic, .. } = &*self.shared;
        let bounds = self.bounds(partition).await?;
        let before = before.min(bounds.end);
        if before <= bounds.start {
            return Ok(());
        }
        let trimming = access.broker().logs().trim(topic, partition, before);
        Ok(access.ask("trimming a log", trimming).await?)
    }

    /// The turn of an append to a partition, if there is one of that number.
    fn turn(&self, partition: u32) -> Result<&Mutex<()>, Error> {
        let turn = self.shared.turns.get(partition as usize);
        turn.ok_or_else(|| Error::NoPartition {
            topic: self.shared.topic.clone(),
            partition,
            partitions: self.partitions(),
        })
    }

    fn at(&self, partition: u32) -> LogPartition {
        LogPartition {
            topic: self.shared.topic.clone(),
            identity: self.shared.identity.clone(),
            partition,
        }
    }

    /// That there is such a partition, and that the topic is the one that was opened.
    async fn check(&self, partition: u32) -> Result<(), Error> {
        let Shared { access, topic, .. } = &*self.shared;
        self.turn(partition)?;
        access.check_open()?;
        let asking = access.broker().logs().identity(topic);
        let now = access.ask("looking up a log", asking).await?;
        self.at(partition).check(now).map_err(Error::Fault)
    }
}

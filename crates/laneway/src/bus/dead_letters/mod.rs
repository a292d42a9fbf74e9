//! Dead letters and parked events: records that were put aside, and what users can do with them.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`DeadLetters`] and [`Parked`]: list, replay, release, discard |
//! | `topic` | `LetterTopic`: the topic that holds the letters of another one |
//! | `digest` | which record had an offset |
//! | `in_flight` | letters on their way to the broker: each is written once |
//! | `headers` | the headers that the bus writes into letters and control records |
//! | `fencing` | letters count only if their writer owned the partition |
//! | `parked_keys` | which keys of a subscription are parked |

pub(super) mod digest;
pub(super) mod fencing;
pub(super) mod headers;
pub(super) mod in_flight;
pub(super) mod parked_keys;
pub(super) mod topic;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use smol_str::SmolStr;

use self::headers as letter_headers;
use self::in_flight::LONGEST_KEY;
use self::topic::{Letter, LetterTopic};
use crate::broker::BrokerError;
use crate::bus::Shared;
use crate::bus::error::Error;
use crate::planted::planted;
use crate::record::Record;
use crate::time::now_ms;
use crate::topic::{Topic, partition_of};

/// The dead letters of a topic. See [`Bus::dead_letters`](crate::Bus::dead_letters).
///
/// ```
/// use laneway::{Bus, Envelope, Exhausted, Failure, testing};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::open("memory:").await?;
/// bus.subscription("orders")
///     .on_exhausted(Exhausted::DeadLetter)
///     .envelope(|_order| async { Err(Failure::fatal("no such product")) })
///     .await?;
/// let order = Envelope::builder("order-1", "OrderPlaced").json(&1)?;
/// bus.publish_envelope("orders", &order).await?;
/// testing::settled(&bus).await?;
///
/// let dead = bus.dead_letters("orders").await?;
/// let letters = dead.list(100).await?;
/// assert_eq!(letters[0].reason, "no such product");
/// dead.discard(&[letters[0].id]).await?; // or dead.replay(&letters)
/// assert!(dead.list(100).await?.is_empty());
/// bus.close(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
pub struct DeadLetters {
    pub(in crate::bus) bus: Arc<Shared>,
    pub(in crate::bus) topic: Topic,
    pub(in crate::bus) letters: Arc<LetterTopic>,
}

impl DeadLetters {
    /// The letters, oldest first, up to `most`.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn list(&self, most: usize) -> Result<Vec<Letter>, Error> {
        self.bus.check_open()?;
        self.letters.list(most, |_| true).await
    }

    /// Publishes these letters to their topic again, in the given order, as they were at first, in the
    /// partition that they came from; only the group that failed gets them. Letters that are gone
    /// already are passed over. Answers how many were replayed.
    ///
    /// Each letter is gone when its event is durable in the topic. A crash in between replays it
    /// twice rather than never, and so do two processes that replay the same letter at the same moment.
    ///
    /// # Errors
    /// When the broker fails; letters before that are replayed. [`Error::LetterMissing`] if the record of
    /// one is not there any more; all others are replayed.
    pub async fn replay(&self, letters: &[Letter]) -> Result<usize, Error> {
        self.bus.check_open()?;
        let _alone = self.letters.replaying.lock().await;
        let mut replayed = HashSet::new();
        let mut missing = Ok(());
        for letter in letters {
            // Asked for each of them: another process may be replaying them, too.
            let gone = self.letters.position().await?;
            if gone.is_done(letter.id) || replayed.contains(&letter.id) {
                continue;
            }
            if let Some(detail) = &letter.missing {
                missing = Err(Error::LetterMissing {
                    id: letter.id,
                    detail: detail.clone(),
                });
                continue;
            }
            self.publish_again(letter).await?;
            self.letters.settle(&[letter.id]).await?;
            replayed.insert(letter.id);
        }
        missing.map(|()| replayed.len())
    }

    async fn publish_again(&self, letter: &Letter) -> Result<(), Error> {
        let mut record = letter.record.clone();
        record.timestamp_ms = now_ms();
        letter_headers::put(
            &mut record.headers,
            letter_headers::ONLY_GROUP,
            &letter.group,
        );
        // Where it was, since there its key has its owner.
        let partition = self.bus.partition_of_origin(&self.topic, letter);
        let again = self.bus.append(&self.topic, partition, record).await;
        let Err(Error::Broker(BrokerError::TooLarge { .. })) = &again else {
            return again;
        };
        let Some(stand_in) = self.stand_in(letter).await? else {
            return again;
        };
        self.bus.append(&self.topic, partition, stand_in).await
    }

    /// A record that stands for the one that a letter is about, where the topic has no room for that one and the
    /// header that says whom it is for. `None` if the topic does not have the original any more: what the letter
    /// holds is then all that is left.
    async fn stand_in(&self, letter: &Letter) -> Result<Option<Record>, Error> {
        let offset = if let Some(offset) = letter.reference {
            offset
        } else {
            let partition = u32::try_from(letter.origin.0).unwrap_or_default();
            let (offset, digest) = (letter.origin.1, letter.digest);
            let original = self.letters.original(partition, offset, digest).await?;
            if original.is_none_or(|original| original.payload != letter.record.payload) {
                return Ok(None);
            }
            letter.origin.1
        };
        let mut stand_in = Record {
            key: letter.key.clone().filter(|key| key.len() <= LONGEST_KEY),
            timestamp_ms: now_ms(),
            ..Record::default()
        };
        let headers = &mut stand_in.headers;
        letter_headers::put(headers, letter_headers::REFERENCE, &offset.to_string());
        if let Some(digest) = letter.digest {
            letter_headers::put(headers, letter_headers::DIGEST, &digest.to_string());
        }
        letter_headers::put(headers, letter_headers::ONLY_GROUP, &letter.group);
        Ok(Some(stand_in))
    }

    /// Replays all of them, oldest first.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub async fn replay_all(&self) -> Result<usize, Error> {
        let letters = self.list(usize::MAX).await?;
        self.replay(&letters).await
    }

    /// Drops letters for good.
    ///
    /// # Errors
    /// When the broker fails; then none is dropped.
    pub async fn discard(&self, ids: &[u64]) -> Result<(), Error> {
        self.bus.check_open()?;
        self.letters.settle(ids).await
    }
}

/// The parked events of a topic. See [`Bus::parked`](crate::Bus::parked).
///
/// ```
/// use laneway::{Bus, Envelope, Exhausted, Failure, testing};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::open("memory:").await?;
/// let frozen = Arc::new(AtomicBool::new(true));
/// let is_frozen = frozen.clone();
/// bus.subscription("transfers")
///     .on_exhausted(Exhausted::ParkKey)
///     .envelope(move |_transfer| {
///         let frozen = is_frozen.load(Ordering::Relaxed);
///         async move {
///             if frozen {
///                 return Err(Failure::fatal("the account is frozen"));
///             }
///             Ok(())
///         }
///     })
///     .await?;
/// for number in 1..=2 {
///     let transfer = Envelope::builder("ada", "Transfer").json(&number)?;
///     bus.publish_envelope("transfers", &transfer).await?;
/// }
/// testing::settled(&bus).await?;
/// let parked = bus.parked("transfers").await?;
/// assert_eq!(parked.list(100).await?.len(), 2); // the second one waits behind the first
///
/// frozen.store(false, Ordering::Relaxed);
/// parked.release("default", "ada").await?; // both are handled now, in order
/// testing::settled(&bus).await?;
/// assert!(parked.list(100).await?.is_empty());
/// bus.close(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Parked {
    pub(in crate::bus) bus: Arc<Shared>,
    pub(in crate::bus) topic: Topic,
    pub(in crate::bus) letters: Arc<LetterTopic>,
}

impl Parked {
    /// The parked events, oldest first, up to `most`.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn list(&self, most: usize) -> Result<Vec<Letter>, Error> {
        self.bus.check_open()?;
        self.letters.list(most, |_| true).await
    }

    /// The keys that have parked events, with the group they are parked for.
    ///
    /// # Errors
    /// When the broker cannot be read.
    pub async fn keys(&self) -> Result<Vec<(String, SmolStr)>, Error> {
        self.bus.check_open()?;
        let mut keys = BTreeSet::new();
        self.letters
            .visit(|letter| {
                keys.extend(letter.key.map(|key| (letter.group, key)));
                ControlFlow::Continue(())
            })
            .await?;
        Ok(keys.into_iter().collect())
    }

    /// Asks for a key to go on: its parked events are handled in order, and then the ones that came
    /// since. The request is an entry in the topic, so it is durable and in order with the events of
    /// the key. If a parked event fails again, the key stays parked from there on.
    ///
    /// # Errors
    /// [`Error::NotParked`] if the group has no parked event of the key; else when the broker fails.
    pub async fn release(&self, group: &str, key: &str) -> Result<(), Error> {
        self.bus.check_open()?;
        let mut partitions = BTreeSet::new();
        self.letters
            .visit(|letter| {
                if letter.group == group && letter.key.as_deref() == Some(key) {
                    partitions.insert(self.bus.partition_of_origin(&self.topic, &letter));
                }
                ControlFlow::Continue(())
            })
            .await?;
        if partitions.is_empty() {
            return Err(Error::NotParked {
                topic: self.topic.name().clone(),
                group: group.to_owned(),
                key: key.to_owned(),
            });
        }
        self.request(group, key, partitions).await
    }

    /// Each owner of some of it is asked: it is parked where its events were, which need not be where
    /// its next ones are.
    async fn request(
        &self,
        group: &str,
        key: &str,
        partitions: BTreeSet<u32>,
    ) -> Result<(), Error> {
        for partition in partitions {
            let request = release_request(group, key);
            self.bus.append(&self.topic, partition, request).await?;
        }
        Ok(())
    }

    /// Drops parked events for good. A key whose last one is dropped goes on.
    ///
    /// # Errors
    /// When the broker fails; if it does so before they are dropped, none is.
    pub async fn discard(&self, ids: &[u64]) -> Result<(), Error> {
        self.bus.check_open()?;
        let mut dropped: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        let mut left = HashSet::new();
        self.letters
            .visit(|letter| {
                let partition = self.bus.partition_of_origin(&self.topic, &letter);
                if let Some(key) = letter.key {
                    if ids.contains(&letter.id) {
                        let of_key = dropped.entry((letter.group, key)).or_default();
                        of_key.insert(partition);
                    } else {
                        left.insert((letter.group, key));
                    }
                }
                ControlFlow::Continue(())
            })
            .await?;
        self.letters.settle(ids).await?;
        for ((group, key), partitions) in dropped {
            if !left.contains(&(group.clone(), key.clone())) {
                self.request(&group, &key, partitions).await?;
            }
        }
        Ok(())
    }
}

pub(in crate::bus) fn release_request(group: &str, key: &str) -> Record {
    let mut record = Record {
        key: Some(SmolStr::new(key)),
        timestamp_ms: now_ms(),
        ..Record::default()
    };
    letter_headers::put_release(&mut record.headers);
    letter_headers::put(&mut record.headers, letter_headers::ONLY_GROUP, group);
    record
}

impl Shared {
    /// The partition that a letter came from. Its key has its owner there, also where the topic has
    /// grown since, or where another producer chose the partition by another rule.
    fn partition_of_origin(&self, topic: &Topic, letter: &Letter) -> u32 {
        let partitions = self.known_topic(topic.name().as_str());
        let partitions = partitions.map_or(topic.partitions(), |known| known.topic.partitions());
        match u32::try_from(letter.origin.0) {
            Ok(partition) if partition < partitions.get() && !planted("B5") => partition,
            _ => partition_of(
                letter.key.as_deref().unwrap_or_default().as_bytes(),
                partitions,
            ),
        }
    }

    /// Appends one record to a partition.
    pub(in crate::bus) async fn append(
        &self,
        topic: &Topic,
        partition: u32,
        record: Record,
    ) -> Result<(), Error> {
        let publishing = self.broker.publish(topic.name(), partition, vec![record]);
        self.call_timeout.with("publishing", publishing).await?;
        Ok(())
    }
}

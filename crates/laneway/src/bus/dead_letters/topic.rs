//! Records that were put aside: dead letters and parked events.
//!
//! They are records of a topic of their own (`<topic>.dead`, `<topic>.parked`), with the original
//! body and what happened in headers. One that was replayed or dropped is settled by a group that the
//! bus keeps for the purpose, which every broker can do; nothing has to be deleted from a log.
//!
//! A record that is so large that the broker takes it, and does not take it with those headers, is put
//! aside by reference: the letter says where the record is, and who reads the letter reads it there.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Mutex;

use super::digest::Digest;
use super::fencing::{Fence, Fences};
use super::headers as letter_headers;
use super::in_flight::{Cause, InFlight, Origin};
use crate::broker::{Broker, BrokerError};
use crate::bus::call_timeout::CallTimeout;
use crate::bus::error::Error;
use crate::bus::partition_state::PartitionState;
use crate::lanes::Failure;
use crate::record::{Delivered, Record};
use crate::settle::{Position, Tracker};
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// The group that says which letters are gone.
const GROUP: &str = "laneway-letters";

/// A broker that has answered a write can be behind with reads for a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A record that was put aside.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Letter {
    /// Its place among the letters.
    pub id: u64,
    /// The aggregate id of the event; the key of the record, if it is no event.
    pub key: Option<SmolStr>,
    /// The group whose handler failed.
    pub group: String,
    /// What the last attempt said.
    pub reason: String,
    /// How many attempts were made.
    pub attempts: u64,
    /// The partition and the offset that it had.
    pub origin: (u64, u64),
    /// Which owner of the partition put it aside; see [`Context::epoch`](crate::Context::epoch).
    pub epoch: Option<u64>,
    /// When it was put aside, in milliseconds since 1970.
    pub at_ms: i64,
    /// The record, with the headers it was published with.
    pub record: Record,
    /// Why the record is empty, if it is: it was too large to be put aside whole, so that it had to stay
    /// where it was, and retention has taken it there. Such a letter can only be dropped.
    pub missing: Option<String>,
    /// Where the record is, if it is not here.
    pub(in crate::bus) reference: Option<u64>,
    /// Which record it is about, at the offset that it had. Not known of letters by reference that were written
    /// before they said so.
    pub(in crate::bus) digest: Option<Digest>,
}

impl Letter {
    fn read(delivered: &Delivered) -> Self {
        let headers = &delivered.record.headers;
        let text = |name| headers.get_str(name).unwrap_or_default().to_owned();
        let number = |name| letter_headers::get_u64(headers, name).unwrap_or_default();
        Self {
            id: delivered.offset,
            key: match headers.get_str(letter_headers::KEY) {
                Some(key) => Some(SmolStr::new(key)),
                None => delivered.record.key.clone(),
            },
            group: text(letter_headers::GROUP),
            reason: text(letter_headers::REASON),
            attempts: number(letter_headers::ATTEMPTS),
            origin: (
                number(letter_headers::PARTITION),
                number(letter_headers::OFFSET),
            ),
            epoch: letter_headers::get_u64(headers, letter_headers::EPOCH),
            at_ms: i64::try_from(number(letter_headers::AT)).unwrap_or_default(),
            record: Record {
                headers: letter_headers::stripped(headers),
                ..(*delivered.record).clone()
            },
            missing: None,
            reference: letter_headers::reference(headers),
            digest: Digest::read(headers).or_else(|| Digest::of(&delivered.record)),
        }
    }
}

/// The letters of one topic, of one kind.
pub(in crate::bus) struct LetterTopic {
    broker: Arc<dyn Broker>,
    call_timeout: CallTimeout,
    /// How many are read at once.
    chunk: usize,
    /// The topic that they come from.
    origin: TopicName,
    /// The topic that they are in.
    topic: TopicName,
    /// What is gone, as the broker last said; locked for every change.
    gone: Mutex<Option<Gone>>,
    in_flight: InFlight,
    /// Whether the topic was there when it was last written to, or asked for.
    is_made: Arc<AtomicBool>,
    /// Held while letters are replayed: two that do so at once would replay them twice.
    pub(in crate::bus) replaying: Mutex<()>,
}

/// Which letters are gone.
struct Gone {
    /// What the broker knows.
    position: Position,
    tracker: Tracker,
    /// One past the last letter that the tracker has heard of.
    next: u64,
    /// Those before that.
    fences: Fences,
}

impl Gone {
    /// Another process has settled letters. To read all of them again each time would take as many reads as there are
    /// letters for each one that is settled, by every process that settles.
    fn learn(&mut self, position: Position) {
        self.tracker.learn(&position);
        self.next = self.next.max(position.low());
        self.position = position;
    }
}

impl LetterTopic {
    pub(in crate::bus) fn new(
        broker: Arc<dyn Broker>,
        call_timeout: CallTimeout,
        chunk: usize,
        origin: TopicName,
        topic: TopicName,
    ) -> Self {
        Self {
            broker,
            call_timeout,
            chunk,
            origin,
            topic,
            gone: Mutex::default(),
            in_flight: InFlight::default(),
            is_made: Arc::default(),
            replaying: Mutex::default(),
        }
    }

    /// Puts a record aside; durable when it resolves. A caller that was not told whether it is may call this
    /// again: what is among the letters by then is not put there a second time.
    pub(in crate::bus) async fn put(
        &self,
        record: &Record,
        cause: &Cause<'_>,
        owner: &Arc<PartitionState>,
    ) -> Result<(), Failure> {
        let origin = cause.origin();
        match self.in_flight.earlier(&origin).await {
            Some(Ok(())) => {}
            Some(Err(_)) if self.has(&origin).await? => {}
            _ => {
                let letters = cause.letters(&self.origin, record);
                let writer = Writer {
                    broker: self.broker.clone(),
                    call_timeout: self.call_timeout,
                    origin: self.origin.clone(),
                    topic: self.topic.clone(),
                    is_made: self.is_made.clone(),
                    owner: owner.clone(),
                };
                self.in_flight.begin(&origin, writer.write(letters)).await?;
            }
        }
        self.in_flight.done(&origin);
        Ok(())
    }

    async fn has(&self, origin: &Origin) -> Result<bool, Error> {
        let mut is_there = false;
        self.visit(|letter| {
            is_there = letter.group == origin.group
                && letter.origin == (u64::from(origin.partition), origin.offset)
                && Digest::can_be(letter.digest, origin.digest);
            if is_there {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        Ok(is_there)
    }

    /// The letters that are not gone, oldest first, up to `most` that `wanted` wants.
    pub(in crate::bus) async fn list(
        &self,
        most: usize,
        mut wanted: impl FnMut(&Letter) -> bool,
    ) -> Result<Vec<Letter>, Error> {
        let mut letters = Vec::new();
        if most == 0 {
            return Ok(letters);
        }
        self.visit(|letter| {
            if wanted(&letter) {
                letters.push(letter);
            }
            if letters.len() == most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        for letter in &mut letters {
            self.resolve(letter).await?;
        }
        Ok(letters)
    }

    /// Fetches the record of a letter that was put aside by reference.
    async fn resolve(&self, letter: &mut Letter) -> Result<(), Error> {
        let Some(offset) = letter.reference else {
            return Ok(());
        };
        let partition = u32::try_from(letter.origin.0).unwrap_or_default();
        match self.original(partition, offset, letter.digest).await? {
            Some(record) => {
                letter.key = letter.key.take().or_else(|| record.key.clone());
                letter.record = Record {
                    headers: letter_headers::stripped(&record.headers),
                    ..(*record).clone()
                };
            }
            None => letter.missing = Some(missing(&self.origin, partition, offset)),
        }
        Ok(())
    }

    /// A record of the topic that the letters come from, if it is still there. If offsets have begun anew since,
    /// another one may be.
    pub(in crate::bus) async fn original(
        &self,
        partition: u32,
        offset: u64,
        digest: Option<Digest>,
    ) -> Result<Option<Arc<Record>>, Error> {
        let peeking = self.broker.peek(&self.origin, partition, offset, 1);
        let records = self.call_timeout.with("reading a record", peeking).await?;
        let first = records.into_iter().next();
        let record = first.filter(|delivered| {
            let is_it = || Digest::can_be(Digest::of(&delivered.record), digest);
            delivered.offset == offset && is_it()
        });
        Ok(record.map(|delivered| delivered.record))
    }

    /// Shows the letters that count and are not gone, oldest first, for as long as the visitor wants.
    pub(in crate::bus) async fn visit(
        &self,
        visitor: impl FnMut(Letter) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.visit_through(None, visitor).await.map(drop)
    }

    /// The same, and all of those up to a place that is known to be there. Answers what is of no use any
    /// more, and the fences.
    pub(in crate::bus) async fn visit_through(
        &self,
        place: Option<u64>,
        mut visitor: impl FnMut(Letter) -> ControlFlow<()>,
    ) -> Result<(bool, Fences), Error> {
        let position = self.position().await?;
        let (mut fences, mut has_useless) = (Fences::default(), false);
        let mut at = position.low();
        let began = tokio::time::Instant::now();
        loop {
            let records = self.peek(at).await?;
            let Some(last) = records.last() else {
                if place.is_none_or(|place| place < at) {
                    return Ok((has_useless, fences));
                }
                self.look_again(began).await?;
                continue;
            };
            at = last.offset + 1;
            for delivered in &records {
                if position.is_done(delivered.offset) {
                    continue;
                }
                if let Some(fence) = Fence::read(&delivered.record.headers) {
                    has_useless |= fences.add(fence, delivered.offset).is_some();
                    continue;
                }
                let letter = Letter::read(delivered);
                if fences.shut_out(&letter) {
                    has_useless = true;
                } else if visitor(letter).is_break() {
                    return Ok((has_useless, fences));
                }
            }
        }
    }

    /// Writes fences among the letters; answers the place of the last one. Without a topic for letters
    /// there is none, unless it is to be made for them.
    pub(in crate::bus) async fn fence(
        &self,
        fences: &[Fence],
        make: bool,
    ) -> Result<Option<u64>, Error> {
        let records: Vec<_> = fences.iter().map(Fence::record).collect();
        let publish = async |records: Vec<Record>| {
            let publishing = self.broker.publish(&self.topic, 0, records);
            self.call_timeout.with("fencing letters", publishing).await
        };
        let offsets = match publish(records.clone()).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) if make => {
                declare(&*self.broker, self.call_timeout, &self.topic).await?;
                publish(records).await?
            }
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => return Ok(None),
            offsets => offsets?,
        };
        self.is_made.store(true, Ordering::SeqCst);
        Ok(fences.len().checked_sub(1).map(|last| offsets.at(last)))
    }

    /// Says that letters have been dealt with; kept when it resolves.
    pub(in crate::bus) async fn settle(&self, ids: &[u64]) -> Result<(), Error> {
        let mut gone = self.gone.lock().await;
        // IMPORTANT: taken out, and put back only when the broker has answered. If the settle fails, or its caller gives
        // up, it is unknown what the broker has noted, and `load` asks for all of it.
        let mut known = gone.take();
        self.settle_in(&mut known, ids).await?;
        *gone = known;
        Ok(())
    }

    async fn settle_in(&self, gone: &mut Option<Gone>, ids: &[u64]) -> Result<(), Error> {
        let gone = self.load(gone).await?;
        self.catch_up(gone, None).await?;
        for id in ids {
            gone.tracker.done(*id);
        }
        let settled = gone.tracker.position();
        if settled == gone.position {
            return Ok(());
        }
        let settling = self.broker.settle(&self.topic, 0, GROUP, settled.clone());
        match self.call_timeout.with("settling letters", settling).await {
            // There are no letters.
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => {}
            result => result?,
        }
        gone.position = settled;
        Ok(())
    }

    /// The epochs of the fences that stand for a group in some partitions, when everything up to a place that is known to
    /// be there was read. What is of no use any more goes.
    pub(in crate::bus) async fn epochs_through(
        &self,
        place: u64,
        group: &str,
        partitions: &[Arc<PartitionState>],
    ) -> Result<Vec<Option<u64>>, Error> {
        let mut gone = self.gone.lock().await;
        // IMPORTANT: as in `settle`.
        let mut known = gone.take();
        let found = self.load(&mut known).await?;
        self.catch_up(found, Some(place)).await?;
        let epoch_of =
            |held: &Arc<PartitionState>| found.fences.epoch(group, u64::from(held.number));
        let epochs = partitions.iter().map(epoch_of).collect();
        self.settle_in(&mut known, &[]).await?;
        *gone = known;
        Ok(epochs)
    }

    /// Reads what came since, all of it up to a place that is known to be there.
    async fn catch_up(&self, gone: &mut Gone, place: Option<u64>) -> Result<(), Error> {
        let Gone {
            tracker,
            next,
            fences,
            ..
        } = gone;
        let began = tokio::time::Instant::now();
        // A tracker knows what was delivered to it; what came since is delivered now.
        loop {
            let records = self.peek(*next).await?;
            let Some(last) = records.last() else {
                if place.is_none_or(|place| place < *next) {
                    return Ok(());
                }
                self.look_again(began).await?;
                continue;
            };
            *next = last.offset + 1;
            for delivered in records {
                if !tracker.deliver(delivered.offset) {
                    continue;
                }
                // What is of no use any more goes as well.
                let useless = match Fence::read(&delivered.record.headers) {
                    Some(fence) => fences.add(fence, delivered.offset),
                    None => fences
                        .shut_out(&Letter::read(&delivered))
                        .then_some(delivered.offset),
                };
                if let Some(useless) = useless {
                    tracker.done(useless);
                }
            }
        }
    }

    /// Waits a moment for what is known to be there, up to the time limit of a call.
    async fn look_again(&self, began: tokio::time::Instant) -> Result<(), Error> {
        let (CallTimeout(limit), doing) = (self.call_timeout, "reading letters");
        if began.elapsed() > limit {
            return Err(Error::TimedOut { doing, limit });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }

    /// What is gone.
    pub(in crate::bus) async fn position(&self) -> Result<Position, Error> {
        let mut gone = self.gone.lock().await;
        Ok(self.load(&mut gone).await?.tracker.position())
    }

    async fn peek(&self, from: u64) -> Result<Vec<Delivered>, Error> {
        let peeking = self.broker.peek(&self.topic, 0, from, self.chunk);
        match self.call_timeout.with("reading letters", peeking).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => Ok(Vec::new()),
            records => records,
        }
    }

    /// What is gone. The broker is asked each time: another process may have dealt with letters.
    async fn load<'a>(&self, gone: &'a mut Option<Gone>) -> Result<&'a mut Gone, Error> {
        let asking = self.broker.position(&self.topic, 0, GROUP);
        let position = match self.call_timeout.with("reading letters", asking).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => None,
            position => position?,
        };
        let position = position.unwrap_or_else(|| Position::at(0));
        match gone {
            Some(known) if known.position == position => {}
            // Positions only grow, unless the topic was made anew.
            Some(known) if known.position.merge(&position) == position => {
                known.learn(position.clone());
            }
            _ => *gone = None,
        }
        Ok(gone.get_or_insert_with(|| Gone {
            next: position.low(),
            tracker: Tracker::resume(position.clone()),
            position,
            fences: Fences::default(),
        }))
    }
}

/// What is said of a record that a letter stands for, and that is not there.
pub(in crate::bus) fn missing(topic: &TopicName, partition: u32, offset: u64) -> String {
    format!(
        "the record was too large to be put aside whole, and retention has taken it at partition \
         {partition}, offset {offset} of {topic}, or the topic was made anew"
    )
}

/// Writes one letter. It goes on when the attempt that began it is over.
struct Writer {
    broker: Arc<dyn Broker>,
    call_timeout: CallTimeout,
    /// The topic of the record.
    origin: TopicName,
    /// The topic of the letter.
    topic: TopicName,
    is_made: Arc<AtomicBool>,
    /// The partition of the record.
    owner: Arc<PartitionState>,
}

impl Writer {
    /// Of the forms that it can have the first one is taken that is not too large.
    async fn write(self, letters: Vec<Record>) -> Result<(), Failure> {
        let mut forms = letters.into_iter().peekable();
        while let Some(letter) = forms.next() {
            match self.publish(letter).await {
                Err(Error::Broker(BrokerError::TooLarge { .. })) if forms.peek().is_some() => {}
                written => {
                    written?;
                    break;
                }
            }
        }
        Ok(())
    }

    async fn publish(&self, letter: Record) -> Result<(), Error> {
        // IMPORTANT: a letter is sent only to a topic that is there. One that is late may come when another owner has the
        // partition, and an owner that found no topic has written no fence.
        if !self.is_made.load(Ordering::SeqCst) {
            self.make().await?;
        }
        let publish = async |letter| {
            let publishing = self.broker.publish(&self.topic, 0, vec![letter]);
            let doing = "putting a record aside";
            self.call_timeout.with(doing, publishing).await
        };
        match publish(letter.clone()).await {
            Err(Error::Broker(BrokerError::UnknownTopic(_))) => {
                self.make().await?;
                publish(letter).await?;
            }
            written => {
                written?;
            }
        }
        Ok(())
    }

    /// Makes the topic. The next owner finds it, since the partition is still ours when it is there.
    async fn make(&self) -> Result<(), Error> {
        declare(&*self.broker, self.call_timeout, &self.topic).await?;
        if !self.owner.assignment.lease().is_valid() {
            return Err(Error::Broker(BrokerError::NotOurs {
                topic: self.origin.clone(),
                partition: self.owner.number,
            }));
        }
        self.is_made.store(true, Ordering::SeqCst);
        Ok(())
    }
}

async fn declare(
    broker: &dyn Broker,
    call_timeout: CallTimeout,
    topic: &TopicName,
) -> Result<(), Error> {
    let beside = Topic::beside(topic.clone());
    let declaring = broker.declare(&beside, Strategy::CreateOnly, Growth::Refused);
    call_timeout.with("declaring a topic", declaring).await?;
    Ok(())
}

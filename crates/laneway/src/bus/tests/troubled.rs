//! A broker that can be given trouble.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::broker::embedded::Embedded;
use crate::broker::lease::Lease;
use crate::broker::{
    Assignment, BoxFuture, Broker, BrokerError, Lag, Member, Offsets, Reader, Start,
};
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    /// No call comes back.
    Stalls,
    /// Commits fail.
    Commits,
    /// Commits take a while, each another one.
    SlowCommits,
    /// Reading fails.
    Reads,
    /// Publishing to a topic for dead letters or parked events fails.
    Letters,
    /// It works, and fails to say so.
    LetterAnswers,
    /// It takes two seconds.
    SlowLetters,
    /// They wait in the client, until [`Troubled::send_late`].
    LateLetters,
    /// Reading them never comes back.
    StalledLetters,
    /// Letters cannot be settled.
    LetterSettles,
    /// They are, and that takes two seconds.
    SlowLetterSettles,
    /// Retention has taken all records of topics that are not for letters.
    Trimmed,
    /// Giving a partition away never comes back.
    StalledReleases,
    /// A record with the key `poison` is too large; those before it in its batch are published.
    Poison,
    /// Publishing works, and fails to say so.
    Answers,
    /// The same in every other partition, from the second one on.
    OddAnswers,
    /// Another member has the partition: commits are refused.
    NotOurs,
    /// Reading panics.
    ReadPanics,
    /// Committing panics.
    CommitPanics,
    /// Waiting for partitions panics.
    MemberPanics,
    /// Ranges cannot be read, single records can.
    Ranges,
    /// Partitions are assigned only when it is over.
    LateAssignments,
    /// When a topic was declared, no partition is known to be ours any more.
    LeaseEndsWithDeclare,
}

#[derive(Clone)]
pub(super) struct Troubled {
    inner: Arc<Embedded>,
    state: Arc<Mutex<State>>,
    /// Instead of the real ones: of the first partitions one each, the last one of all others.
    leases: Vec<Arc<Lease>>,
}

#[derive(Default)]
struct State {
    troubles: HashSet<Trouble>,
    commits: Vec<Commit>,
    released: Vec<u32>,
    /// What waits in the client.
    late: Vec<(TopicName, Record)>,
    /// Where records were published, in order.
    published: Vec<(TopicName, u32)>,
    /// The largest record that is taken.
    largest: Option<usize>,
    reread: usize,
    /// How many records of topics for letters were read.
    letters_read: usize,
    members_gone: usize,
    leases_asked: usize,
}

/// A commit that was tried.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) topic: TopicName,
    pub(super) partition: u32,
    pub(super) position: Position,
}

impl Troubled {
    pub(super) async fn new() -> Self {
        Self {
            inner: Arc::new(Embedded::in_memory().await.unwrap()),
            state: Arc::default(),
            leases: Vec::new(),
        }
    }

    /// One that several processes could share.
    pub(super) async fn held(lease: &Arc<Lease>) -> Self {
        Self::held_by(vec![lease.clone()]).await
    }

    /// The same with leases of single partitions.
    pub(super) async fn held_by(leases: Vec<Arc<Lease>>) -> Self {
        Self {
            leases,
            ..Self::new().await
        }
    }

    fn lease_of(&self, partition: u32) -> Option<&Arc<Lease>> {
        let place = usize::try_from(partition).unwrap_or(usize::MAX);
        self.leases.get(place).or(self.leases.last())
    }

    /// The same server, as another member sees it.
    pub(super) fn seen_by_another(&self, lease: &Arc<Lease>) -> Self {
        Self {
            inner: self.inner.clone(),
            state: Arc::default(),
            leases: vec![lease.clone()],
        }
    }

    /// What waited in the client is written.
    pub(super) async fn send_late(&self) {
        let late = std::mem::take(&mut self.state.lock().unwrap().late);
        assert!(!late.is_empty(), "nothing waits");
        for (topic, record) in late {
            self.inner.publish(&topic, 0, vec![record]).await.unwrap();
        }
    }

    /// How many records wait in the client.
    pub(super) fn late(&self) -> usize {
        self.state.lock().unwrap().late.len()
    }

    /// Takes no record that is larger.
    pub(super) fn takes_up_to(&self, largest: usize) {
        self.state.lock().unwrap().largest = Some(largest);
    }

    /// The partitions of a topic that records were published to, in order.
    pub(super) fn published(&self, topic: &str) -> Vec<u32> {
        let state = self.state.lock().unwrap();
        let of_topic = state
            .published
            .iter()
            .filter(|(name, _)| name.as_str() == topic);
        of_topic.map(|(_, partition)| *partition).collect()
    }

    /// The partitions that were released.
    pub(super) fn released(&self) -> Vec<u32> {
        self.state.lock().unwrap().released.clone()
    }

    /// How many records of topics for letters were read.
    pub(super) fn letters_read(&self) -> usize {
        self.state.lock().unwrap().letters_read
    }

    /// How many ranges were read again.
    pub(super) fn reread_count(&self) -> usize {
        self.state.lock().unwrap().reread
    }

    /// How often it was asked how long a partition is ours.
    pub(super) fn leases_asked(&self) -> usize {
        self.state.lock().unwrap().leases_asked
    }

    /// How many members of groups are gone.
    pub(super) fn members_gone(&self) -> usize {
        self.state.lock().unwrap().members_gone
    }

    pub(super) fn begin(&self, trouble: Trouble) {
        self.state.lock().unwrap().troubles.insert(trouble);
    }

    pub(super) fn end(&self, trouble: Trouble) {
        self.state.lock().unwrap().troubles.remove(&trouble);
    }

    fn has(&self, trouble: Trouble) -> bool {
        self.state.lock().unwrap().troubles.contains(&trouble)
    }

    /// All commits that were tried, in the order in which they arrived.
    pub(super) fn commits(&self) -> Vec<Commit> {
        self.state.lock().unwrap().commits.clone()
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        call: impl Future<Output = Result<T, BrokerError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, BrokerError>> {
        Box::pin(async move {
            if self.has(Trouble::Stalls) {
                std::future::pending::<()>().await;
            }
            call.await
        })
    }
}

fn trouble(doing: &str) -> BrokerError {
    BrokerError::Io {
        doing: doing.to_owned(),
        source: std::io::Error::other("trouble"),
    }
}

impl Broker for Troubled {
    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>> {
        self.call(async move {
            let declared = self.inner.declare(topic, strategy, growth).await;
            if self.has(Trouble::LeaseEndsWithDeclare) {
                self.leases.iter().for_each(|lease| lease.expire());
            }
            declared
        })
    }

    #[cfg(feature = "log")]
    fn logs(&self) -> &dyn crate::broker::log::Logs {
        self.inner.logs()
    }

    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>> {
        self.call(self.inner.describe(topic))
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        self.call(self.inner.topics())
    }

    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.call(self.inner.delete(topic))
    }

    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<Offsets, BrokerError>> {
        {
            let mut state = self.state.lock().unwrap();
            let size = records.iter().map(Record::size).max().unwrap_or_default();
            if let Some(most) = state.largest.filter(|most| size > *most) {
                return Box::pin(async move { Err(BrokerError::TooLarge { size, most }) });
            }
            state.published.push((topic.clone(), partition));
        }
        if topic.reserved().is_some() && self.has(Trouble::LateLetters) {
            let late = records.into_iter().map(|record| (topic.clone(), record));
            self.state.lock().unwrap().late.extend(late);
            return Box::pin(std::future::pending());
        }
        if topic.reserved().is_some() && self.has(Trouble::Letters) {
            return Box::pin(async { Err(trouble("publishing")) });
        }
        if self.has(Trouble::Poison)
            && let Some(at) =
                (records.iter()).position(|record| record.key.as_deref() == Some("poison"))
        {
            let before = records[..at].to_vec();
            return Box::pin(async move {
                if !before.is_empty() {
                    self.inner.publish(topic, partition, before).await?;
                }
                Err(BrokerError::TooLarge { size: 2, most: 1 })
            });
        }
        let publishing = self.inner.publish(topic, partition, records);
        if self.has(Trouble::Answers) || partition % 2 == 1 && self.has(Trouble::OddAnswers) {
            return Box::pin(async move { publishing.await.and(Err(trouble("publishing"))) });
        }
        if topic.reserved().is_some() && self.has(Trouble::LetterAnswers) {
            return Box::pin(async move { publishing.await.and(Err(trouble("publishing"))) });
        }
        if topic.reserved().is_some() && self.has(Trouble::SlowLetters) {
            return Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                publishing.await
            });
        }
        self.call(publishing)
    }

    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Box<dyn Member>, BrokerError>> {
        self.call(async move {
            let member: Box<dyn Member> = Box::new(TroubledMember {
                member: self.inner.join(topic, group, start).await?,
                topic: topic.clone(),
                broker: self.clone(),
            });
            Ok(member)
        })
    }

    fn position<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        self.call(self.inner.position(topic, partition, group))
    }

    fn settle<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
        position: Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.call(async move {
            if topic.reserved().is_some() && self.has(Trouble::LetterSettles) {
                return Err(trouble("settling"));
            }
            if topic.reserved().is_some() && self.has(Trouble::SlowLetterSettles) {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            self.inner.settle(topic, partition, group, position).await
        })
    }

    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        if topic.reserved().is_some() && self.has(Trouble::StalledLetters) {
            return Box::pin(std::future::pending());
        }
        if topic.reserved().is_none() && self.has(Trouble::Trimmed) {
            return Box::pin(async { Ok(Vec::new()) });
        }
        let peeking = self.inner.peek(topic, partition, from, most);
        self.call(async move {
            let records = peeking.await?;
            if topic.reserved().is_some() {
                self.state.lock().unwrap().letters_read += records.len();
            }
            Ok(records)
        })
    }

    fn reread<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        range: std::ops::Range<u64>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        self.state.lock().unwrap().reread += 1;
        if self.has(Trouble::Ranges) {
            return Box::pin(async { Err(trouble("reading a range")) });
        }
        self.call(self.inner.reread(topic, partition, range, most))
    }

    fn lag<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>> {
        self.call(self.inner.lag(topic, group))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.call(self.inner.health())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.call(self.inner.close())
    }
}

struct TroubledMember {
    member: Box<dyn Member>,
    topic: TopicName,
    broker: Troubled,
}

impl Member for TroubledMember {
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Assignment>, BrokerError>> {
        Box::pin(async {
            assert!(!self.broker.has(Trouble::MemberPanics), "waiting breaks");
            while self.broker.has(Trouble::LateAssignments) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let assignment: Arc<dyn Assignment> = Arc::new(TroubledAssignment {
                assignment: self.member.next().await?,
                topic: self.topic.clone(),
                broker: self.broker.clone(),
            });
            Ok(assignment)
        })
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        // Dropping is leaving, in memory.
        Box::pin(std::future::ready(()))
    }
}

struct TroubledAssignment {
    assignment: Arc<dyn Assignment>,
    topic: TopicName,
    broker: Troubled,
}

impl Assignment for TroubledAssignment {
    fn partition(&self) -> u32 {
        self.assignment.partition()
    }

    fn epoch(&self) -> u64 {
        self.assignment.epoch()
    }

    fn position(&self) -> &Position {
        self.assignment.position()
    }

    fn lease(&self) -> &Lease {
        self.broker.state.lock().unwrap().leases_asked += 1;
        match self.broker.lease_of(self.partition()) {
            Some(lease) => lease,
            None => self.assignment.lease(),
        }
    }

    fn read(&self) -> Box<dyn Reader> {
        Box::new(TroubledReader {
            reader: self.assignment.read(),
            partition: self.assignment.partition(),
            broker: self.broker.clone(),
            held: None,
        })
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        let broker = &self.broker;
        broker.call(async move {
            if broker.has(Trouble::SlowCommits) {
                let millis = rand::random_range(0..20);
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            let commit = Commit {
                topic: self.topic.clone(),
                partition: self.partition(),
                position: position.clone(),
            };
            broker.state.lock().unwrap().commits.push(commit);
            assert!(!broker.has(Trouble::CommitPanics), "committing breaks");
            if broker.has(Trouble::NotOurs) {
                return Err(BrokerError::NotOurs {
                    topic: self.topic.clone(),
                    partition: self.partition(),
                });
            }
            if broker.has(Trouble::Commits) {
                return Err(trouble("committing"));
            }
            self.assignment.commit(position).await
        })
    }

    fn lose(&self) {
        if let Some(lease) = self.broker.lease_of(self.partition()) {
            lease.lose();
        }
        self.assignment.lose();
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.broker
                .state
                .lock()
                .unwrap()
                .released
                .push(self.partition());
            if self.broker.has(Trouble::StalledReleases) {
                std::future::pending::<()>().await;
            }
            self.assignment.release().await;
        })
    }
}

impl Drop for TroubledMember {
    fn drop(&mut self) {
        self.broker.state.lock().unwrap().members_gone += 1;
    }
}

struct TroubledReader {
    reader: Box<dyn Reader>,
    partition: u32,
    broker: Troubled,
    /// Read in vain.
    held: Option<Vec<Delivered>>,
}

impl Reader for TroubledReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(async move {
            let records = match self.held.take() {
                Some(records) => records,
                None => self.reader.next().await?,
            };
            let breaks = self.broker.has(Trouble::ReadPanics) && self.partition == 0;
            assert!(!breaks, "reading breaks");
            if self.broker.has(Trouble::Reads) && self.partition == 0 {
                self.held = Some(records);
                return Err(trouble("reading"));
            }
            Ok(records)
        })
    }
}

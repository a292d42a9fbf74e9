//! A broker that can be given trouble.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::broker::embedded::Embedded;
use crate::broker::tenure::Tenure;
use crate::broker::{BoxFuture, Broker, BrokerError, Claim, Lag, Member, Offsets, Reader, Start};
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
}

#[derive(Clone)]
pub(super) struct Troubled {
    inner: Arc<Embedded>,
    state: Arc<Mutex<State>>,
    /// Instead of the real one.
    tenure: Option<Arc<Tenure>>,
}

#[derive(Default)]
struct State {
    troubles: HashSet<Trouble>,
    commits: Vec<Commit>,
    released: Vec<u32>,
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
            tenure: None,
        }
    }

    /// One that several processes could share.
    pub(super) async fn held(tenure: &Arc<Tenure>) -> Self {
        Self {
            tenure: Some(tenure.clone()),
            ..Self::new().await
        }
    }

    /// The partitions that were released.
    pub(super) fn released(&self) -> Vec<u32> {
        self.state.lock().unwrap().released.clone()
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
        self.call(self.inner.declare(topic, strategy, growth))
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
        if topic.reserved().is_some() && self.has(Trouble::Letters) {
            return Box::pin(async { Err(trouble("publishing")) });
        }
        let publishing = self.inner.publish(topic, partition, records);
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
        self.call(self.inner.settle(topic, partition, group, position))
    }

    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        self.call(self.inner.peek(topic, partition, from, most))
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
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Claim>, BrokerError>> {
        Box::pin(async {
            let claim: Arc<dyn Claim> = Arc::new(TroubledClaim {
                claim: self.member.next().await?,
                topic: self.topic.clone(),
                broker: self.broker.clone(),
            });
            Ok(claim)
        })
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.member.leave()
    }
}

struct TroubledClaim {
    claim: Arc<dyn Claim>,
    topic: TopicName,
    broker: Troubled,
}

impl Claim for TroubledClaim {
    fn partition(&self) -> u32 {
        self.claim.partition()
    }

    fn epoch(&self) -> u64 {
        self.claim.epoch()
    }

    fn position(&self) -> &Position {
        self.claim.position()
    }

    fn tenure(&self) -> &Tenure {
        self.broker.tenure.as_deref().unwrap_or(self.claim.tenure())
    }

    fn read(&self) -> Box<dyn Reader> {
        Box::new(TroubledReader {
            reader: self.claim.read(),
            partition: self.claim.partition(),
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
            if broker.has(Trouble::Commits) {
                return Err(trouble("committing"));
            }
            self.claim.commit(position).await
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.broker
                .state
                .lock()
                .unwrap()
                .released
                .push(self.partition());
            self.claim.release().await;
        })
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
            if self.broker.has(Trouble::Reads) && self.partition == 0 {
                self.held = Some(records);
                return Err(trouble("reading"));
            }
            Ok(records)
        })
    }
}

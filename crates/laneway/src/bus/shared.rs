//! What the parts of a bus share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use smol_str::SmolStr;
#[cfg(feature = "metrics")]
use tokio::runtime::Handle;

use super::call_timeout::CallTimeout;
use super::dead_letters::topic::LetterTopic;
#[cfg(feature = "delay")]
use super::delayed::Backend;
use super::error::Error;
use super::handle::Inner;
use super::limits::BusLimits;
use super::progress::Progress;
use super::publishes::Publishes;
use super::rate::Limiter;
use super::state::State;
use crate::broker::Broker;
use crate::broker::subscriptions::{SubscriptionGuard, Subscriptions};
use crate::lanes::{Engine, TopicOptions};
use crate::topic::{Strategy, Topic, TopicName};

pub(super) struct Shared {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) engine: Engine,
    pub(super) lane_options: TopicOptions,
    pub(super) strategy: Strategy,
    pub(super) call_timeout: CallTimeout,
    pub(super) limits: BusLimits,
    pub(super) limiter: Option<Limiter>,
    pub(super) topics: RwLock<HashMap<SmolStr, Arc<KnownTopic>>>,
    pub(super) letters: Mutex<HashMap<TopicName, Arc<LetterTopic>>>,
    /// One subscription per topic and group.
    pub(super) guards: Subscriptions,
    /// Those that are not closed. They live here: a dropped handle does not end a subscription. One
    /// that stopped by itself stays until it is closed or another one takes its place, so that
    /// [`health`](super::Bus::health) tells of it.
    pub(super) subscriptions: Mutex<Vec<Arc<Inner>>>,
    pub(super) progress: Progress,
    #[cfg(feature = "delay")]
    pub(super) delays: Backend,
    #[cfg(feature = "metrics")]
    pub(super) runtime: Handle,
    /// Nothing may be asked of it any more, but that handlers which run can publish.
    pub(super) closed: AtomicBool,
    /// No handler runs any more.
    pub(super) drained: AtomicBool,
}

/// A topic as the broker has it, so that a publish need not ask.
pub(super) struct KnownTopic {
    pub(super) topic: Topic,
    pub(super) publishes: Arc<Publishes>,
    round_robin: AtomicU32,
}

impl KnownTopic {
    pub(super) fn new(topic: Topic) -> Self {
        Self {
            topic,
            publishes: Arc::default(),
            round_robin: AtomicU32::new(0),
        }
    }

    /// The partition of the next plain message: truly in turn, whatever goes to other topics.
    pub(super) fn next_partition(&self) -> u32 {
        self.round_robin.fetch_add(1, Ordering::Relaxed) % self.topic.partitions().get()
    }
}

impl Shared {
    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Whether events can be published: handlers that run do so while the bus closes.
    pub(super) fn check_publishing(&self) -> Result<(), Error> {
        if self.drained.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    pub(super) fn known_topic(&self, name: &str) -> Option<Arc<KnownTopic>> {
        let topics = self.topics.read();
        topics.get(name).cloned()
    }

    /// All topics that were used or declared, by name.
    #[cfg(feature = "metrics")]
    pub(super) fn all_known(&self) -> Vec<Arc<KnownTopic>> {
        let topics = self.topics.read();
        let mut topics: Vec<_> = topics.values().cloned().collect();
        topics.sort_by(|a, b| a.topic.name().cmp(b.topic.name()));
        topics
    }

    pub(super) fn remember(&self, topic: Topic) -> Arc<KnownTopic> {
        let name = SmolStr::new(topic.name().as_str());
        let mut known = KnownTopic::new(topic);
        let mut topics = self.topics.write();
        if let Some(before) = topics.get(&name) {
            // A topic that is declared again goes on counting.
            known.publishes = before.publishes.clone();
        }
        let known = Arc::new(known);
        topics.insert(name, known.clone());
        known
    }

    pub(super) fn forget(&self, name: &TopicName) {
        let mut topics = self.topics.write();
        topics.remove(name.as_str());
        self.letters
            .lock()
            .retain(|letters, _| letters.base() != *name);
    }

    pub(super) fn dead(&self, topic: &TopicName) -> Arc<LetterTopic> {
        self.letters(topic, &topic.dead())
    }

    pub(super) fn parked(&self, topic: &TopicName) -> Arc<LetterTopic> {
        self.letters(topic, &topic.parked())
    }

    /// One for each topic, so that changes meet.
    fn letters(&self, origin: &TopicName, topic: &TopicName) -> Arc<LetterTopic> {
        let make = || {
            let broker = self.broker.clone();
            let (timeout, chunk) = (self.call_timeout, self.limits.letters);
            let letters = LetterTopic::new(broker, timeout, chunk, origin.clone(), topic.clone());
            Arc::new(letters)
        };
        self.letters
            .lock()
            .entry(topic.clone())
            .or_insert_with(make)
            .clone()
    }

    /// From here on no other subscription of the group can read the topic, until the guard is dropped.
    pub(super) fn subscribe_once(
        &self,
        topic: &TopicName,
        group: &str,
    ) -> Result<SubscriptionGuard, Error> {
        let guard = self.guards.acquire(topic, group);
        guard.ok_or_else(|| Error::AlreadySubscribed {
            topic: topic.clone(),
            group: group.to_owned(),
        })
    }

    /// Notes a subscription, in the place of one that stopped.
    pub(super) fn note_subscription(&self, subscription: Arc<Inner>) {
        let flow = &subscription.flow;
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.retain(|known| {
            let same = known.flow.topic == flow.topic && known.flow.group == flow.group;
            !(same && matches!(known.flow.condition.state(), State::Stopped(_)))
        });
        subscriptions.push(subscription);
    }

    pub(super) fn forget_subscription(&self, subscription: &Inner) {
        self.subscriptions
            .lock()
            .retain(|known| !std::ptr::eq(Arc::as_ptr(known), subscription));
    }

    pub(super) fn subscriptions(&self) -> Vec<Arc<Inner>> {
        self.subscriptions.lock().clone()
    }
}

//! What the parts of a bus share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use smol_str::SmolStr;
use tokio::runtime::Handle;

use super::delayed::Home;
use super::error::Error;
use super::handle::{Inner, Place};
use super::letters::LetterBox;
use super::metrics::Publishes;
use super::patience::Patience;
use super::progress::Progress;
use super::rate::Limiter;
use super::state::State;
use crate::broker::Broker;
use crate::lanes::{Engine, TopicOptions};
use crate::topic::{Strategy, Topic, TopicName};

pub(super) struct Shared {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) engine: Engine,
    pub(super) lane_options: TopicOptions,
    pub(super) strategy: Strategy,
    pub(super) patience: Patience,
    pub(super) limiter: Option<Limiter>,
    pub(super) topics: RwLock<HashMap<SmolStr, Arc<Known>>>,
    pub(super) letters: Mutex<HashMap<TopicName, Arc<LetterBox>>>,
    pub(super) places: Mutex<HashSet<(TopicName, String)>>,
    /// Those that are not closed. They live here: a dropped handle does not end a subscription. One
    /// that stopped by itself stays until it is closed or another one takes its place, so that
    /// [`health`](super::Bus::health) tells of it.
    pub(super) subscriptions: Mutex<Vec<Arc<Inner>>>,
    pub(super) progress: Progress,
    pub(super) delays: Home,
    pub(super) runtime: Handle,
    pub(super) closed: AtomicBool,
}

/// A topic as the broker has it, so that a publish need not ask.
pub(super) struct Known {
    pub(super) topic: Topic,
    pub(super) publishes: Arc<Publishes>,
    round_robin: AtomicU32,
}

impl Known {
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

    pub(super) fn known(&self, name: &str) -> Option<Arc<Known>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(name).cloned()
    }

    /// All topics that were used or declared, by name.
    pub(super) fn all_known(&self) -> Vec<Arc<Known>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let mut topics: Vec<_> = topics.values().cloned().collect();
        topics.sort_by(|a, b| a.topic.name().cmp(b.topic.name()));
        topics
    }

    pub(super) fn remember(&self, topic: Topic) -> Arc<Known> {
        let name = SmolStr::new(topic.name().as_str());
        let mut known = Known::new(topic);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = topics.get(&name) {
            // A topic that is declared again goes on counting.
            known.publishes = before.publishes.clone();
        }
        let known = Arc::new(known);
        topics.insert(name, known.clone());
        known
    }

    pub(super) fn forget(&self, name: &TopicName) {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.remove(name.as_str());
        lock(&self.letters).retain(|letters, _| letters.base() != *name);
    }

    pub(super) fn dead(&self, topic: &TopicName) -> Arc<LetterBox> {
        self.letters(topic, &topic.dead())
    }

    pub(super) fn parked(&self, topic: &TopicName) -> Arc<LetterBox> {
        self.letters(topic, &topic.parked())
    }

    /// One for each topic, so that changes meet.
    fn letters(&self, origin: &TopicName, topic: &TopicName) -> Arc<LetterBox> {
        let make = || {
            let broker = self.broker.clone();
            let letters = LetterBox::new(broker, self.patience, origin.clone(), topic.clone());
            Arc::new(letters)
        };
        lock(&self.letters)
            .entry(topic.clone())
            .or_insert_with(make)
            .clone()
    }

    pub(super) fn take_place(
        self: &Arc<Self>,
        topic: &TopicName,
        group: &str,
    ) -> Result<Place, Error> {
        let key = (topic.clone(), group.to_owned());
        if !lock(&self.places).insert(key.clone()) {
            return Err(Error::AlreadySubscribed {
                topic: topic.clone(),
                group: group.to_owned(),
            });
        }
        Ok(Place::new(self, key))
    }

    pub(super) fn give_up_place(&self, key: &(TopicName, String)) {
        lock(&self.places).remove(key);
    }

    /// Notes a subscription, in the place of one that stopped.
    pub(super) fn note_subscription(&self, subscription: Arc<Inner>) {
        let flow = &subscription.flow;
        let mut subscriptions = lock(&self.subscriptions);
        subscriptions.retain(|known| {
            let same = known.flow.topic == flow.topic && known.flow.group == flow.group;
            !(same && matches!(known.flow.condition.state(), State::Stopped(_)))
        });
        subscriptions.push(subscription);
    }

    pub(super) fn forget_subscription(&self, subscription: &Inner) {
        lock(&self.subscriptions).retain(|known| !std::ptr::eq(Arc::as_ptr(known), subscription));
    }

    pub(super) fn subscriptions(&self) -> Vec<Arc<Inner>> {
        lock(&self.subscriptions).clone()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

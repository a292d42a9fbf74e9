//! What tests of the engine share: sinks that note what they get.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::{Arc, Mutex};

use laneway_delay::clock::ManualClock;
use laneway_delay::{
    BoxFuture, Deliver, Firing, Publish, Sinks, State, Submission, Target, Timestamp, Undelivered,
    When,
};
use waiting::wait_for;

/// A delivery, with the time at which it was started.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) due: Timestamp,
    pub(crate) at: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) url_or_topic: String,
}

type Answer = dyn Fn(&Firing) -> Result<(), Undelivered> + Send + Sync;

/// Notes all that is delivered, and answers as it is told to.
#[derive(Clone)]
pub(crate) struct Witness {
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<Answer>,
}

impl Witness {
    pub(crate) fn new() -> Self {
        Self::answering(|_| Ok(()))
    }

    pub(crate) fn answering(
        answer: impl Fn(&Firing) -> Result<(), Undelivered> + Send + Sync + 'static,
    ) -> Self {
        Self {
            seen: Arc::default(),
            answer: Arc::new(answer),
        }
    }

    pub(crate) fn sinks(&self) -> Sinks {
        Sinks {
            callbacks: Some(Arc::new(self.clone())),
            bus: Some(Arc::new(self.clone())),
        }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.id).collect()
    }

    fn note(&self, firing: &Firing) -> Result<(), Undelivered> {
        let url_or_topic = match &firing.message.target {
            Target::Callback(callback) => callback.url.clone(),
            Target::Bus(bus) => bus.topic.clone(),
            _ => unreachable!("there are two kinds"),
        };
        self.seen.lock().unwrap().push(Seen {
            id: firing.message.id.to_string(),
            due: firing.due(),
            at: started(firing),
            attempt: firing.attempt(),
            url_or_topic,
        });
        (self.answer)(firing)
    }

    /// Waits until so many were seen.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<Seen> {
        wait_for!(self.seen.lock().unwrap().len() >= count);
        self.seen()
    }
}

impl Deliver for Witness {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        let result = self.note(&firing);
        Box::pin(std::future::ready(result))
    }
}

impl Publish for Witness {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        let results = batch.iter().map(|firing| self.note(firing)).collect();
        Box::pin(std::future::ready(results))
    }
}

/// When the attempt was started, by the clock of the engine: tests may set it meanwhile.
fn started(firing: &Firing) -> Timestamp {
    match firing.message.record.state() {
        State::Firing { since } => since,
        other => panic!("it is {other}, and not firing"),
    }
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn manual() -> ManualClock {
    ManualClock::new(at(100_000_000))
}

pub(crate) fn to_bus(key: &str, due: Timestamp) -> Submission {
    Submission::new("t", When::At(due), Target::bus("orders", key, "Due"))
}

pub(crate) fn to_host(host: &str, due: Timestamp) -> Submission {
    let target = Target::callback(format!("http://{host}/"));
    Submission::new("t", When::At(due), target)
}

//! Where attempts go: notes each one, and answers as it was told to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use laneway_delay::clock::Clock;
use laneway_delay::{BoxFuture, Deliver, Firing, MessageId, Timestamp, Undelivered};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::world::TestClock;

/// What a receiver says to an attempt.
#[derive(Clone, Debug)]
pub(super) enum Say {
    Yes,
    No,
    /// It will never take it.
    Never,
    /// Nothing.
    Unknown,
    /// Yes, when it is let go.
    Hang,
}

/// An attempt that came.
#[derive(Clone, Debug)]
pub(super) struct Came {
    pub(super) worker: String,
    pub(super) id: MessageId,
    pub(super) attempt: u32,
    pub(super) due: Timestamp,
    pub(super) at: Timestamp,
    pub(super) is_good: bool,
}

#[derive(Default)]
struct State {
    came: Vec<Came>,
    says: HashMap<String, VecDeque<Say>>,
    free: HashSet<String>,
}

/// All receivers.
#[derive(Clone)]
pub(super) struct Receiver {
    state: Arc<Mutex<State>>,
    freed: Arc<Notify>,
    clock: TestClock,
}

impl Receiver {
    pub(super) fn new(clock: TestClock) -> Self {
        Self {
            state: Arc::default(),
            freed: Arc::default(),
            clock,
        }
    }

    /// What is said to the next attempts of a message; yes to those after.
    pub(super) fn says(&self, id: &str, says: &[Say]) {
        let says = says.iter().cloned().collect();
        self.state.lock().says.insert(id.to_owned(), says);
    }

    pub(super) fn let_go(&self, id: &str) {
        self.state.lock().free.insert(id.to_owned());
        self.freed.notify_waiters();
    }

    pub(super) fn came(&self) -> Vec<Came> {
        self.state.lock().came.clone()
    }

    pub(super) fn of(&self, id: &str) -> Vec<Came> {
        let came = self.came().into_iter();
        came.filter(|came| came.id.as_str() == id).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.state.lock().came.len()
    }
}

/// The way out of one worker.
pub(super) struct Sink {
    pub(super) worker: String,
    pub(super) receiver: Receiver,
    /// Nothing of it gets out any more.
    pub(super) is_dead: Arc<AtomicBool>,
}

impl Deliver for Sink {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            if self.is_dead.load(SeqCst) {
                return std::future::pending().await;
            }
            let id = firing.message.id.clone();
            let say = {
                let mut state = self.receiver.state.lock();
                let says = state.says.get_mut(id.as_str());
                let say = says.and_then(VecDeque::pop_front).unwrap_or(Say::Yes);
                state.came.push(Came {
                    worker: self.worker.clone(),
                    id: id.clone(),
                    attempt: firing.attempt(),
                    due: firing.due(),
                    at: self.receiver.clock.now(),
                    is_good: matches!(say, Say::Yes | Say::Hang),
                });
                say
            };
            match say {
                Say::Yes => Ok(()),
                Say::No => Err(Undelivered::retry("503")),
                Say::Never => Err(Undelivered::permanent("410")),
                Say::Unknown => Err(Undelivered::unknown("no answer")),
                Say::Hang => loop {
                    let freed = self.receiver.freed.notified();
                    if self.receiver.state.lock().free.contains(id.as_str()) {
                        return Ok(());
                    }
                    freed.await;
                },
            }
        })
    }
}

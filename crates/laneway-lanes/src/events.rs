//! What an engine has to tell: rare things that an operator should know.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

/// Something that happened in an engine.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A handler panicked; its worker started afresh.
    WorkerRestarted {
        /// The worker.
        worker: usize,
        /// How often it has restarted since the engine started.
        restarts: u64,
        /// Set when it restarts too often: it is degraded and rests so long before it goes on.
        pause: Option<Duration>,
    },
    /// All attempts for a job failed, and it was put aside.
    DeadLettered {
        /// Its topic.
        topic: Arc<str>,
        /// Its key.
        key: Option<String>,
        /// How often it was tried.
        attempts: u32,
        /// What the last attempt said.
        reason: String,
    },
    /// A job failed and its lane waits for the next attempt.
    LaneBackingOff {
        /// Its topic.
        topic: Arc<str>,
        /// Its key.
        key: Option<String>,
        /// How many attempts have failed.
        failed_attempts: u32,
        /// What the last attempt said.
        reason: String,
        /// How long the lane waits.
        retry_in: Duration,
    },
    /// A lane that backs off goes on.
    LaneReleased {
        /// Its topic.
        topic: Arc<str>,
        /// Its key.
        key: Option<String>,
    },
    /// A submit found no room and waits. Told at most once a second for each topic.
    Saturated {
        /// The topic.
        topic: Arc<str>,
        /// What was full.
        full: Full,
    },
    /// A handler has been running for very long. Told once for each attempt.
    HandlerStuck {
        /// Its topic.
        topic: Arc<str>,
        /// The key it works on.
        key: Option<String>,
        /// Its worker.
        worker: usize,
        /// How long it has been running.
        running_for: Duration,
    },
    /// A task of a subscription ended unexpectedly, by a bug; it is started again.
    TaskRestarted {
        /// The topic.
        topic: Arc<str>,
        /// What it does.
        task: String,
        /// What is known of why.
        reason: String,
        /// How long it rests before it starts.
        pause: Duration,
    },
}

/// What was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The lane of the key.
    Lane,
    /// The window of the topic.
    Topic,
    /// The engine.
    Engine,
}

/// The events of an engine, from now on. See [`Engine::events`](super::Engine::events).
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; `None` when the engine is gone.
    ///
    /// A reader that falls more than 1024 events behind misses the oldest; they are counted in the
    /// log, and the engine never waits for a reader.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "a reader of lane events is too slow");
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// The sending side: free while there is no listener.
#[derive(Clone, Debug)]
pub(super) struct Teller(broadcast::Sender<Event>);

impl Teller {
    pub(super) fn new() -> Self {
        Self(broadcast::channel(1024).0)
    }

    pub(super) fn listen(&self) -> Events {
        Events(self.0.subscribe())
    }

    /// Builds the event only if there is a listener.
    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.0.receiver_count() > 0 {
            // An error means that the last listener left just now.
            let _ = self.0.send(event());
        }
    }
}

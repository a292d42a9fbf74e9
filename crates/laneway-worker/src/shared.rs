use std::sync::{Arc, OnceLock};
use std::time::Duration;

use laneway_delay::Timestamp;
use laneway_delay::store::DueIndex;
use laneway_rpc::proto;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::Options;
use crate::ledger::{Bounds, Ledger, PeerId, Taken};
use crate::load::Load;

/// What the parts of a worker share: the ledger, and what time it is.
pub(crate) struct Shared {
    pub(crate) options: Options,
    ledger: Mutex<Ledger>,
    /// The near part of the due index, which the engine has. Set when the engine starts.
    pub(crate) due_index: OnceLock<Arc<dyn DueIndex>>,
    pub(crate) load: Load,
    /// Notified when an attempt ended or was forgotten.
    pub(crate) settled: Notify,
    /// Whether connections and tasks have to end.
    pub(crate) is_closed: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        let bounds = Bounds {
            instance: options.instance,
            credit: options.credit,
            held_bytes: options.held_bytes,
            start_within: options.start_within,
            offer_every: options.offer_every,
            serves_callbacks: options.sinks.callbacks.is_some(),
            serves_bus: options.sinks.bus.is_some(),
        };
        Arc::new(Self {
            options,
            ledger: Mutex::new(Ledger::new(bounds)),
            due_index: OnceLock::new(),
            load: Load::default(),
            settled: Notify::new(),
            is_closed: watch::Sender::new(false),
        })
    }

    /// IMPORTANT: the due index has a lock of its own, and is never told of anything while this one is held.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    pub(crate) fn counter(&self) -> Duration {
        (self.options.counter)()
    }

    pub(crate) fn take(&self, from: PeerId, go: proto::Go) {
        let (now, counter) = (self.now(), self.counter());
        let taken = self.ledger().take(from, go, now, counter);
        if let (Taken::Held(scheduled), Some(due_index)) = (taken, self.due_index.get()) {
            due_index.admit(&[scheduled]);
        }
    }

    /// Whether an attempt may be sent now; it runs then.
    pub(crate) fn begin(&self, serial: u64) -> bool {
        let counter = self.counter();
        self.ledger().begin(serial, counter)
    }

    pub(crate) fn end(&self, serial: u64, ending: proto::Ending) {
        let counter = self.counter();
        self.ledger().end(serial, ending, counter);
        self.settled.notify_waiters();
    }

    pub(crate) fn rest(&self, serial: u64, wait: Duration) {
        let counter = self.counter();
        self.ledger().rest(serial, wait, counter);
    }
}

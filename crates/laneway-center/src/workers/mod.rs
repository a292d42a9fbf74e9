//! The workers of the cluster, as this center reaches them.
//!
//! The registry says which there are, and [`Connect`] opens a stream to each. [`Workers`] chooses the worker of an
//! attempt, sends frames, and tells all shards when a worker is dead or has come back. It decides nothing: a worker that
//! is wrongly taken for dead costs a duplicate at most.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `choose` | which worker gets an attempt |
//! | `directory` | a link for each worker that the registry lists |
//! | `in_flight` | bytes on their way to a worker |
//! | `link` | the stream to one worker: hello, pings, frames in and out |

mod choose;
mod directory;
mod in_flight;
mod link;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use laneway_cluster::balance::{self, Balancer, Load};
use laneway_cluster::record::Instance;
use laneway_delay::clock::Clock;
use laneway_delay::{BoxFuture, Timestamp};
use laneway_registry::InstanceId;
use laneway_rpc::connection::WorkerConnection;
use laneway_rpc::proto::{self, to_worker::Frame};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::clocks::{ALARM, Corrections, Measured};
use crate::options::{Settings, Topics};
use crate::shard::{Event, Mailbox};
use crate::stats::{Counters, count};

#[cfg(test)]
pub(crate) use directory::instance as instance_of;
pub(crate) use directory::watch;

use in_flight::InFlight;

/// Opens streams to workers.
pub trait Connect: Send + Sync + 'static {
    /// A stream to the worker at an address of the registry, on which `own` was said and its hello was heard. The caller has a
    /// deadline.
    fn connect<'a>(
        &'a self,
        address: &'a str,
        own: &'a proto::Hello,
    ) -> BoxFuture<'a, Result<WorkerConnection, ConnectError>>;
}

/// Why there is no stream to a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(pub String);

/// What is known of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// There is a stream.
    Connected,
    /// There may be one soon.
    Expected,
    /// It is dead, or was never heard of.
    Gone,
}

/// All workers.
pub(crate) struct Workers {
    pub(crate) cluster: String,
    pub(crate) own: proto::Hello,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) topics: Arc<dyn Topics>,
    pub(crate) counters: Arc<Counters>,
    mailboxes: Vec<Mailbox>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the entry of the registry.
    links: BTreeMap<InstanceId, Link>,
    /// The entry of each process that said hello.
    entries: HashMap<Instance, InstanceId>,
    /// Those with a stream, as balancers want them.
    alive: Vec<balance::Worker>,
    balancers: HashMap<String, Balancer>,
    corrections: Corrections,
    is_current: bool,
    /// Those that an operator has removed, whatever the registry lists.
    removed: BTreeSet<InstanceId>,
}

/// A worker that the registry lists, or that was reached and is not given up yet.
struct Link {
    name: String,
    weight: u32,
    /// Is listed in the registry.
    is_listed: bool,
    /// It was tried to reach it, and that has ended once.
    was_tried: bool,
    instance: Option<Instance>,
    stream: Option<Stream>,
    clock: Measured,
    load: Load,
    /// What it has begun and not settled.
    unsettled: u64,
    is_draining: bool,
}

struct Stream {
    /// Bounded by credit, and by what is in flight.
    frames: mpsc::UnboundedSender<proto::ToWorker>,
    credit: u64,
    in_flight: InFlight,
}

impl Stream {
    /// Whether an attempt can be given to its worker now.
    fn has_room(&self) -> bool {
        self.credit > 0 && !self.in_flight.is_full()
    }

    fn send(&self, frame: Frame) -> bool {
        let frame = proto::ToWorker { frame: Some(frame) };
        self.frames.send(frame).is_ok()
    }
}

/// How a worker looks to people.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) instance: Option<Instance>,
    pub(crate) name: String,
    pub(crate) is_connected: bool,
    pub(crate) load: Load,
    pub(crate) unsettled: u64,
    pub(crate) ahead: i64,
    pub(crate) is_draining: bool,
}

impl Workers {
    pub(crate) fn new(
        cluster: String,
        own: proto::Hello,
        settings: Settings,
        clock: Arc<dyn Clock>,
        topics: Arc<dyn Topics>,
        counters: Arc<Counters>,
        mailboxes: Vec<Mailbox>,
    ) -> Self {
        Self {
            cluster,
            own,
            settings,
            clock,
            topics,
            counters,
            mailboxes,
            state: Mutex::new(State::default()),
        }
    }

    /// Sends a frame. `false`: there is no stream, and nothing was sent.
    pub(crate) fn send(&self, worker: Instance, frame: Frame) -> bool {
        let mut state = self.state.lock();
        let stream = state.stream(worker);
        stream.is_some_and(|stream| stream.send(frame))
    }

    /// Gives an attempt to the worker that was chosen for it, with so many bytes of content. `false`: there is no stream. The moment
    /// of the attempt is told in the time of the worker.
    pub(crate) fn go(&self, worker: Instance, mut go: proto::Go, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let shift = state.shift(worker);
        let Some(stream) = state.stream(worker) else {
            return false;
        };
        go.not_before_ms = go.not_before_ms.saturating_add_signed(shift);
        let is_sent = stream.send(Frame::Go(go));
        if let Some(number) = stream.in_flight.sent(bytes) {
            stream.send(Frame::Ping(proto::Ping { number }));
        }
        is_sent
    }

    /// A worker has got everything before a mark.
    fn arrived(&self, id: InstanceId, mark: u64) {
        let mut state = self.state.lock();
        let link = state.links.get_mut(&id);
        if let Some(stream) = link.and_then(|link| link.stream.as_mut()) {
            stream.in_flight.arrived(mark);
        }
    }

    /// What is known of a process.
    pub(crate) fn reached(&self, worker: Instance) -> Reached {
        let state = self.state.lock();
        if let Some(link) = state
            .entries
            .get(&worker)
            .and_then(|id| state.links.get(id))
        {
            return match link.stream {
                Some(_) => Reached::Connected,
                None => Reached::Expected,
            };
        }
        let is_listed = |id: &InstanceId| directory::instance(*id) == worker;
        let is_to_come = |link: &Link| link.is_listed && !link.was_tried;
        let may_come = !state.is_current
            || state.links.keys().any(is_listed)
            || state.links.values().any(is_to_come);
        if may_come {
            Reached::Expected
        } else {
            Reached::Gone
        }
    }

    /// Whether a process has said hello here, and was not taken for dead since. Its stream may be broken for a moment.
    pub(crate) fn knows(&self, worker: Instance) -> bool {
        self.state.lock().entries.contains_key(&worker)
    }

    /// The moment by which attempts begin.
    pub(crate) fn begin_now(&self) -> Timestamp {
        let correction = self.state.lock().corrections.begin;
        corrected(self.clock.now(), correction)
    }

    /// The moment from which due times are computed.
    pub(crate) fn due_now(&self) -> Timestamp {
        let correction = self.state.lock().corrections.due;
        corrected(self.clock.now(), correction)
    }

    /// All workers, for people.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let state = self.state.lock();
        let seen = state.links.values().map(|link| Seen {
            instance: link.instance,
            name: link.name.clone(),
            is_connected: link.stream.is_some(),
            load: link.load,
            unsettled: link.unsettled,
            ahead: link.clock.ahead().unwrap_or(0),
            is_draining: link.is_draining,
        });
        seen.collect()
    }

    /// A frame of a worker, for the shard that it names.
    fn deliver(&self, shard: u32, event: Event) {
        let mailbox = usize::try_from(shard)
            .ok()
            .and_then(|shard| self.mailboxes.get(shard));
        if let Some(mailbox) = mailbox {
            // Where there is no room the worker says it again, or is asked again.
            let _ = mailbox.try_send(event);
        }
    }

    fn tell_all(&self, event: impl Fn() -> Event) {
        for mailbox in &self.mailboxes {
            // A scan of the state finds out, too.
            let _ = mailbox.try_send(event());
        }
    }

    /// A worker has said hello.
    fn connected(
        &self,
        id: InstanceId,
        instance: Instance,
        frames: mpsc::UnboundedSender<proto::ToWorker>,
    ) {
        {
            let mut state = self.state.lock();
            let Some(link) = state.links.get_mut(&id) else {
                return;
            };
            link.instance = Some(instance);
            link.was_tried = true;
            link.stream = Some(Stream {
                frames,
                credit: 0,
                in_flight: InFlight::default(),
            });
            state.entries.insert(instance, id);
            state.refresh();
        }
        self.tell_all(|| Event::WorkerBack(instance));
    }

    /// The stream to a worker has ended, or none could be had.
    fn disconnected(&self, id: InstanceId) {
        let mut state = self.state.lock();
        if let Some(link) = state.links.get_mut(&id) {
            link.stream = None;
            link.was_tried = true;
            link.is_draining = false;
            state.refresh();
        }
    }

    /// A worker is taken for dead. A later hello of it is one of a worker that came.
    fn died(&self, id: InstanceId) {
        let instance = {
            let mut state = self.state.lock();
            let Some(link) = state.links.get_mut(&id) else {
                return;
            };
            link.stream = None;
            let instance = link.instance.take();
            link.clock = Measured::default();
            if let Some(instance) = instance {
                state.entries.remove(&instance);
            }
            state.refresh();
            instance
        };
        if let Some(instance) = instance {
            count(&self.counters.dead_workers);
            tracing::warn!(worker = ?instance, "a worker is dead: what it had goes to others");
            self.tell_all(|| Event::WorkerGone(instance));
        }
    }

    fn credited(&self, id: InstanceId, more: u32) {
        let mut state = self.state.lock();
        if let Some(stream) = state
            .links
            .get_mut(&id)
            .and_then(|link| link.stream.as_mut())
        {
            stream.credit = stream.credit.saturating_add(u64::from(more));
        }
    }

    /// A pong of a ping that was sent at `sent` by the own clock.
    fn ponged(&self, id: InstanceId, sent: Timestamp, pong: &proto::Pong) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(link) = state.links.get_mut(&id) else {
            return;
        };
        link.clock
            .add(sent.as_millis(), now.as_millis(), pong.now_ms);
        link.is_draining = pong.is_draining;
        link.unsettled = pong.unsettled;
        link.load = Load {
            held: pong.held,
            cpu: pong.cpu,
            memory: pong.memory,
        };
        let ahead = link.clock.ahead().unwrap_or(0);
        if u128::from(ahead.unsigned_abs()) > ALARM.as_millis() {
            tracing::warn!(worker = %link.name, ahead_ms = ahead, "the clock of a worker is another one than that of this center");
        }
        state.refresh();
    }
}

impl State {
    /// What to add to a moment for the clock of a worker.
    fn shift(&self, worker: Instance) -> i64 {
        let link = self.entries.get(&worker).and_then(|id| self.links.get(id));
        let ahead = link.and_then(|link| link.clock.ahead_at_most());
        self.corrections.for_worker(ahead.unwrap_or(0))
    }

    /// The stream to a process, if there is one.
    fn stream(&mut self, worker: Instance) -> Option<&mut Stream> {
        let id = self.entries.get(&worker)?;
        self.links.get_mut(id)?.stream.as_mut()
    }

    /// Those that live, and their clocks, have changed.
    fn refresh(&mut self) {
        let alive = self.links.values().filter(|link| link.stream.is_some());
        let alive = alive.filter(|link| !link.is_draining);
        // IMPORTANT: a center whose own clock is ahead does not know before the first pong, and would begin too early.
        let alive = alive.filter(|link| link.clock.ahead().is_some());
        let alive = alive.filter_map(|link| {
            Some(balance::Worker {
                instance: link.instance?,
                name: link.name.clone(),
                weight: link.weight,
                load: link.load,
            })
        });
        self.alive = alive.collect();
        let connected = self.links.values().filter(|link| link.stream.is_some());
        self.corrections = Corrections::of(connected.filter_map(|link| link.clock.ahead()));
    }
}

fn corrected(now: Timestamp, correction: i64) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add_signed(correction))
}

//! A cluster in one process: centers over one log, workers, a registry, and assignments by hand.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, SystemTime};

use laneway::lanes::FailureKind;
use laneway_backup::Backup;
use laneway_cluster::checker::{Said, SubmitTold, What};
use laneway_cluster::owner::{Order, Submit};
use laneway_cluster::record::{Answer, Instance, Key, RequestDigest, Verb};
use laneway_cluster::shard_of;
use laneway_delay::clock::{Clock, SystemClock};
use laneway_delay::{BoxFuture, MessageId, Schedule, Sinks, Submission, Target, Timestamp, When};
use laneway_registry::{Registration, Registry, Role};
use laneway_rpc::connection::{WorkerConnection, pair_of};
use laneway_rpc::convert::{self, Parts as Body};
use laneway_rpc::proto::{self, reply, request};
use laneway_rpc::{CallError, CenterCalls};
use laneway_worker::Worker;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::memory_log::MemoryLog;
use super::receiver::{Receiver, Sink};
use crate::center::Parts;
use crate::options::{DefaultTopics, Settings, Topics};
use crate::shared::Planted;
use crate::workers::{Connect, ConnectError};
use crate::{Center, intake};

pub(super) const CLUSTER: &str = "c";

/// Longer than a busy machine makes anything wait: no test is about what happens after it.
const LONG: Duration = Duration::from_mins(1);

/// How a center is made.
#[derive(Clone)]
pub(super) struct Make {
    pub(super) settings: Settings,
    pub(super) planted: Option<Planted>,
    /// The directory of this one, not a new one.
    pub(super) directory: Option<PathBuf>,
    /// Its clock is so many milliseconds ahead.
    pub(super) ahead_ms: i64,
    pub(super) backup: Option<Backup>,
    pub(super) topics: Option<Arc<dyn Topics>>,
}

/// A clock that is ahead of another one.
pub(super) struct Wrong {
    ahead_ms: i64,
    clock: TestClock,
}

impl Wrong {
    fn by(clock: &TestClock, ahead_ms: i64) -> Arc<dyn Clock> {
        let clock = clock.clone();
        Arc::new(Self { ahead_ms, clock })
    }
}

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        let right = self.clock.now().as_millis();
        Timestamp::from_millis(right.saturating_add_signed(self.ahead_ms))
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        let right = at.as_millis().saturating_add_signed(-self.ahead_ms);
        self.clock.sleep_until(Timestamp::from_millis(right))
    }
}

impl Default for Make {
    /// No worker is dead and no call is over because a thread was not run for seconds.
    fn default() -> Self {
        let mut settings = Settings::default();
        for limit in [
            &mut settings.append_within,
            &mut settings.ask_within,
            &mut settings.call_within,
            &mut settings.drain,
            &mut settings.silence,
            &mut settings.grace,
        ] {
            *limit = LONG;
        }
        Self {
            settings,
            planted: None,
            directory: None,
            ahead_ms: 0,
            backup: None,
            topics: None,
        }
    }
}

/// The clock of the system, and the time that a test has let pass besides. Clones are the same clock.
#[derive(Clone, Default)]
pub(super) struct TestClock {
    system: Arc<SystemClock>,
    passed: Arc<AtomicU64>,
}

impl TestClock {
    fn passed(&self) -> Duration {
        Duration::from_millis(self.passed.load(SeqCst))
    }

    /// Lets time pass for all centers, workers and receivers at once.
    pub(super) fn pass(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap();
        self.passed.fetch_add(millis, SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        self.system.now() + self.passed()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        let wait = at.since(self.now());
        // It looks again after a moment, however long it is.
        self.system.sleep_until(self.system.now() + wait)
    }
}

pub(super) struct World {
    pub(super) log: MemoryLog,
    pub(super) clock: TestClock,
    pub(super) receiver: Receiver,
    pub(super) registry: Registry,
    pub(super) connector: Arc<InProcess>,
    pub(super) directory: TempDir,
    pub(super) centers: BTreeMap<u8, Node>,
    registrations: HashMap<String, Registration>,
    /// Entries of workers that were started again: their sessions are not over yet.
    outlived: Vec<Registration>,
    pub(super) shards: u32,
    pub(super) said: Mutex<Vec<Said>>,
    made: u8,
}

/// A center that runs.
pub(super) struct Node {
    pub(super) center: Center,
    pub(super) log: MemoryLog,
    assigned: watch::Sender<BTreeMap<u32, u64>>,
    pub(super) directory: PathBuf,
}

/// A worker of this process.
struct Entry {
    worker: Worker,
    hello: proto::Hello,
    is_dead: Arc<AtomicBool>,
    links: Vec<AbortHandle>,
}

/// Workers by their addresses, which are their names.
#[derive(Default)]
pub(super) struct InProcess {
    entries: Mutex<HashMap<String, Entry>>,
    /// What workers say about themselves is kept back.
    pub(super) keeps_pongs: Arc<AtomicBool>,
    /// What each byte of a payload takes on its way to a worker.
    pub(super) per_byte: Arc<Mutex<Duration>>,
}

/// How long a frame takes on the wire.
fn transit(frame: &proto::ToWorker, per_byte: Duration) -> Duration {
    let Some(proto::to_worker::Frame::Go(go)) = &frame.frame else {
        return Duration::ZERO;
    };
    let bytes = go.content.as_ref().map_or(0, |it| it.payload.len());
    per_byte * u32::try_from(bytes).unwrap()
}

impl Connect for InProcess {
    fn connect<'a>(
        &'a self,
        address: &'a str,
        own: &'a proto::Hello,
    ) -> BoxFuture<'a, Result<WorkerConnection, ConnectError>> {
        Box::pin(async move {
            let mut entries = self.entries.lock();
            let entry = entries
                .get_mut(address)
                .filter(|it| !it.is_dead.load(SeqCst));
            let entry = entry.ok_or_else(|| ConnectError("it is not there".to_owned()))?;
            // Two pairs with a wire between them that can be cut.
            let (of_center, mut wire_center) = pair_of(256, own.clone(), entry.hello.clone());
            let (mut wire_worker, of_worker) = pair_of(256, own.clone(), entry.hello.clone());
            entry.worker.serve(of_worker);
            let per_byte = self.per_byte.clone();
            let keeps_pongs = self.keeps_pongs.clone();
            // Each direction by itself, as on a network.
            let wire = tokio::spawn(async move {
                let is_kept = |frame: &proto::ToCenter| {
                    let is_pong = matches!(frame.frame, Some(proto::to_center::Frame::Pong(_)));
                    is_pong && keeps_pongs.load(SeqCst)
                };
                let there = async {
                    while let Some(frame) = wire_center.receiver.recv().await {
                        let transit = transit(&frame, *per_byte.lock());
                        if !transit.is_zero() {
                            tokio::time::sleep(transit).await;
                        }
                        if wire_worker.sender.send(frame).await.is_err() {
                            return;
                        }
                    }
                };
                let back = async {
                    while let Some(frame) = wire_worker.receiver.recv().await {
                        if !is_kept(&frame) && wire_center.sender.send(frame).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = there => {}
                    () = back => {}
                }
            });
            entry.links.push(wire.abort_handle());
            Ok(of_center)
        })
    }
}

pub(super) fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

pub(super) fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

pub(super) fn soon(millis: u64) -> Timestamp {
    now() + Duration::from_millis(millis)
}

pub(super) fn submit(text: &str, due: Timestamp, waits_ms: &[u64]) -> Submit {
    let target = Target::callback("https://example.com/");
    let submission = Submission::new("reminders", When::At(due), target).payload("{}");
    let mut body = Body::from(submission);
    let waits = waits_ms.iter().copied().map(Duration::from_millis);
    body.retry = Some(Schedule::new(waits));
    Submit {
        id: id(text),
        digest: RequestDigest([7; 32]),
        due,
        at: now(),
        topic: "reminders".to_owned(),
        body: convert::body(&body),
    }
}

impl World {
    pub(super) fn new(shards: u32) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_test_writer()
            .try_init();
        let clock = TestClock::default();
        Self {
            log: MemoryLog::new(shards),
            receiver: Receiver::new(clock.clone()),
            clock,
            registry: Registry::local(),
            connector: Arc::default(),
            directory: tempfile::tempdir().unwrap(),
            centers: BTreeMap::new(),
            registrations: HashMap::new(),
            outlived: Vec::new(),
            shards,
            said: Mutex::default(),
            made: 0,
        }
    }

    /// One center that has all shards, and workers.
    pub(super) async fn started(shards: u32, workers: &[&str]) -> Self {
        let mut world = Self::new(shards);
        for name in workers {
            world.start_worker(name);
        }
        let center = world.start_center(Make::default());
        world.assign_all(center);
        world.owned(center).await;
        world
    }

    pub(super) fn start_worker(&mut self, name: &str) {
        self.start_worker_with(name, |_| {});
    }

    /// A worker whose clock is so many milliseconds ahead.
    pub(super) fn start_worker_ahead(&mut self, name: &str, ahead_ms: i64) {
        let clock = Wrong::by(&self.clock, ahead_ms);
        self.start_worker_with(name, |options| options.clock = clock);
    }

    pub(super) fn start_worker_with(
        &mut self,
        name: &str,
        set: impl FnOnce(&mut laneway_worker::Options),
    ) {
        let listed = laneway_registry::Instance::new(Role::Worker, name, name);
        let instance = crate::workers::instance_of(listed.id);
        let is_dead = Arc::new(AtomicBool::new(false));
        let sink = Sink {
            worker: name.to_owned(),
            receiver: self.receiver.clone(),
            is_dead: is_dead.clone(),
        };
        let sinks = Sinks {
            callbacks: Some(Arc::new(sink)),
            ..Sinks::default()
        };
        let mut options = laneway_worker::Options::new(CLUSTER, instance, name, sinks);
        options.offer_every = Duration::from_millis(300);
        options.start_within = LONG;
        options.clock = Arc::new(self.clock.clone());
        set(&mut options);
        let worker = Worker::start(options).unwrap();
        let hello = proto::Hello {
            cluster: CLUSTER.to_owned(),
            instance: instance.0.to_vec().into(),
            name: name.to_owned(),
            version: String::new(),
        };
        let entry = Entry {
            worker,
            hello,
            is_dead,
            links: Vec::new(),
        };
        self.connector.entries.lock().insert(name.to_owned(), entry);
        let registration = self.registry.register(listed);
        let before = self.registrations.insert(name.to_owned(), registration);
        self.outlived.extend(before);
    }

    /// The streams of a worker break. It stays where it is.
    pub(super) fn cut(&self, name: &str) {
        let mut entries = self.connector.entries.lock();
        for link in entries.get_mut(name).unwrap().links.drain(..) {
            link.abort();
        }
    }

    /// A worker ends without a word. The registry still lists it.
    pub(super) fn kill_worker(&self, name: &str) {
        let entries = self.connector.entries.lock();
        entries[name].is_dead.store(true, SeqCst);
        drop(entries);
        self.cut(name);
    }

    /// The entry of a worker in the registry.
    pub(super) fn entry(&self, name: &str) -> laneway_registry::InstanceId {
        self.registrations[name].id()
    }

    pub(super) fn worker(&self, name: &str) -> Worker {
        self.connector.entries.lock()[name].worker.clone()
    }

    pub(super) fn start_center(&mut self, make: Make) -> u8 {
        self.made += 1;
        let number = self.made;
        let directory = make
            .directory
            .unwrap_or_else(|| self.directory.path().join(format!("center-{number}")));
        let log = self.log.another();
        let parts = Parts {
            cluster: CLUSTER.to_owned(),
            instance: Instance([number; 16]),
            name: format!("center-{number}"),
            directory: directory.clone(),
            registry: self.registry.clone(),
            connector: self.connector.clone(),
            clock: Wrong::by(&self.clock, make.ahead_ms),
            topics: make.topics.unwrap_or_else(|| Arc::new(DefaultTopics)),
            backup: make.backup,
            settings: make.settings,
            planted: make.planted,
        };
        let center = Center::over(&parts, Arc::new(log.clone())).unwrap();
        let assigned = watch::Sender::new(BTreeMap::new());
        center.forward(assigned.subscribe());
        let node = Node {
            center,
            log,
            assigned,
            directory,
        };
        self.centers.insert(number, node);
        number
    }

    /// A center ends without a word.
    pub(super) fn kill(&mut self, center: u8) -> PathBuf {
        self.centers.remove(&center).unwrap().directory
    }

    pub(super) fn assign(&self, center: u8, shards: &[u32]) {
        let shards = shards.iter().map(|shard| (*shard, 1)).collect();
        self.centers[&center].assigned.send_replace(shards);
    }

    pub(super) fn assign_all(&self, center: u8) {
        let all: Vec<_> = (0..self.shards).collect();
        self.assign(center, &all);
    }

    pub(super) fn stats(&self, center: u8) -> crate::CenterStats {
        self.centers[&center].center.stats()
    }

    pub(super) async fn owned(&self, center: u8) {
        waiting::wait_for!(self.stats(center).owned == u64::from(self.shards));
    }

    /// Waits until a center has streams to so many workers.
    pub(super) async fn connected(&self, center: u8, workers: usize) {
        let seen = || self.centers[&center].center.shared.workers.seen();
        waiting::wait_for!(seen().iter().filter(|seen| seen.is_connected).count() == workers);
    }

    /// Waits until a center has heard that it has no shards any more.
    pub(super) async fn revoked(&self, center: u8) {
        let states = &self.centers[&center].center.shared.states;
        waiting::wait_for!(states.iter().all(|state| !state.is_assigned.load(SeqCst)));
    }

    /// Waits until the views of a center have on disk what is in the log.
    pub(super) async fn committed(&self, center: u8) {
        let states = &self.centers[&center].center.shared.states;
        let is_committed = |shard: u32| {
            let end = self.log.all(shard).len() as u64;
            states[shard as usize].committed.load(SeqCst) == end
        };
        waiting::wait_for!((0..self.shards).all(is_committed));
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn shard(&self, text: &str) -> u32 {
        shard_of(&id(text), self.shards)
    }

    /// Submits until a center has taken it, as the bus does.
    pub(super) async fn submit(&self, submit: Submit) {
        let shard = shard_of(&submit.id, self.shards);
        let waiting = waiting::Waiting::default();
        let (digest, told) = (submit.digest, SubmitTold::Accepted);
        let sent = now();
        let said = |what| Said {
            member: 0,
            id: submit.id.clone(),
            sent,
            answered: now(),
            what,
            in_fault: false,
        };
        loop {
            for node in self.centers.values() {
                if !node.assigned.borrow().contains_key(&shard) {
                    continue;
                }
                let taking = intake::deliver(&node.center.mailboxes, shard, submit.clone());
                match taking.await {
                    Ok(()) => {
                        self.said.lock().push(said(What::Submit { digest, told }));
                        return;
                    }
                    Err(failure) => {
                        assert_eq!(failure.kind(), FailureKind::Failed, "{failure:?}");
                    }
                }
            }
            waiting.check(&"a submit is taken");
            waiting::pause().await;
        }
    }

    pub(super) async fn call(&self, center: u8, shard: u32, what: request::What) -> reply::What {
        self.try_call(center, shard, what).await.unwrap()
    }

    async fn try_call(
        &self,
        center: u8,
        shard: u32,
        what: request::What,
    ) -> Result<reply::What, CallError> {
        let request = proto::Request {
            shard,
            what: Some(what),
        };
        let reply = self.centers[&center].center.call(request).await?;
        Ok(reply.what.unwrap())
    }

    /// Gives a command to the one owner there is.
    pub(super) async fn command(
        &self,
        text: &str,
        order: Order,
        key: Option<(&str, u8)>,
    ) -> proto::Answer {
        let key = key.map(|(key, digest)| (Key::of(key), RequestDigest([digest; 32])));
        let waiting = waiting::Waiting::default();
        loop {
            for center in self.centers.keys() {
                let command = convert::command(&id(text), &order, key);
                let what = request::What::Command(command);
                let sent = now();
                if let reply::What::Answer(answer) =
                    self.call(*center, self.shard(text), what).await
                {
                    let told = Answer::try_from(&answer).ok();
                    let verb = match &order {
                        Order::ExtendTo(_) | Order::ExtendBy(_) => Verb::Extend,
                        Order::Withdraw => Verb::Withdraw,
                        Order::Stop => Verb::Stop,
                        Order::Replay { .. } => Verb::Replay,
                        Order::Purge => Verb::Purge,
                    };
                    self.said.lock().push(Said {
                        member: 0,
                        id: id(text),
                        sent,
                        answered: now(),
                        what: What::Command { verb, key, told },
                        in_fault: false,
                    });
                    return answer;
                }
            }
            waiting.check(&"a command is answered");
            waiting::pause().await;
        }
    }

    pub(super) async fn look_up(&self, text: &str) -> Option<proto::Message> {
        let waiting = waiting::Waiting::default();
        loop {
            for center in self.centers.keys() {
                let what = request::What::LookUp(text.to_owned());
                match self.try_call(*center, self.shard(text), what).await {
                    Ok(reply::What::Found(found)) => return found.message,
                    Ok(_) => {}
                    // An owner that steps down drops its callers.
                    Err(error) => assert!(error.is_retryable(), "{error:?}"),
                }
            }
            waiting.check(&"a look-up is answered");
            waiting::pause().await;
        }
    }

    pub(super) async fn state(&self, text: &str) -> proto::State {
        self.look_up(text).await.unwrap().state()
    }

    pub(super) async fn reaches(&self, text: &str, state: proto::State) {
        let waiting = waiting::Waiting::default();
        loop {
            let is = self.state(text).await;
            if is == state {
                return;
            }
            waiting.check(&format_args!("{text} is {state:?}, not {is:?}"));
            waiting::pause().await;
        }
    }
}

//! A worker whose time stands still until a test moves it, its sinks, and a center.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laneway_cluster::record::Instance;
use laneway_delay::clock::{Clock, ManualClock};
use laneway_delay::{
    BoxFuture, Deliver, Failure, Firing, Publish, Sinks, Target, Timestamp, Undelivered,
};
use laneway_rpc::connection::{WorkerConnection, pair_of};
use laneway_rpc::proto::ending::How;
use laneway_rpc::proto::to_center::Frame;
use laneway_rpc::proto::to_worker::Frame as ToFrame;
use laneway_rpc::proto::{self, ToWorker};
use laneway_worker::{Options, Worker};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const BEGAN: u64 = 1_700_000_000_000;

/// Both clocks of a worker.
#[derive(Clone)]
pub(crate) struct Time {
    pub(crate) clock: ManualClock,
    counter: Arc<AtomicU64>,
}

impl Time {
    /// Moves what START is measured with, and not the clock.
    pub(crate) fn count(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).expect("short");
        self.counter.fetch_add(millis, Ordering::SeqCst);
    }

    /// All processes stand still for this long.
    pub(crate) fn freeze(&self, by: Duration) {
        self.count(by);
        self.clock.advance(by);
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().as_millis()
    }
}

/// Does what the host in the URL says, or the type of the event.
pub(crate) struct TestSink {
    /// Those that were sent, in order.
    pub(crate) sent: Mutex<Vec<(String, u32, Timestamp)>>,
    /// What hangs takes a permit.
    pub(crate) gate: Semaphore,
    clock: ManualClock,
}

impl TestSink {
    fn note(&self, firing: &Firing) {
        let id = firing.message.id.as_str().to_owned();
        let mut sent = self.sent.lock();
        sent.push((id, firing.attempt(), self.clock.now()));
    }

    pub(crate) fn sent(&self) -> Vec<String> {
        let sent = self.sent.lock();
        sent.iter().map(|(id, ..)| id.clone()).collect()
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        let sent = self.sent();
        sent.iter().filter(|id| id.starts_with(prefix)).count()
    }

    async fn answer(&self, word: &str) -> Result<(), Undelivered> {
        match word {
            "hangs" => {
                let permit = self.gate.acquire().await.expect("open");
                permit.forget();
                Ok(())
            }
            "fails" => Err(Undelivered::retry("500")),
            "later" => Err(Undelivered::new(
                Failure::RetryAfter(Duration::from_secs(9)),
                "429",
            )),
            "never" => Err(Undelivered::permanent("410")),
            "silent" => Err(Undelivered::unknown("no answer")),
            "closed" => Err(Undelivered::new(
                Failure::Unavailable(Duration::from_secs(7)),
                "its circuit is open",
            )),
            "postponed" => Err(Undelivered::new(
                Failure::Postponed(Duration::from_secs(4)),
                "its circuit is open",
            )),
            "panics" => panic!("as the test wants it"),
            _ => Ok(()),
        }
    }
}

impl Deliver for TestSink {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            self.note(&firing);
            let Target::Callback(callback) = &firing.message.target else {
                return Err(Undelivered::permanent("not a callback"));
            };
            let host = callback.url.trim_start_matches("http://");
            let word = host.split(['.', '/']).next().unwrap_or_default();
            self.answer(word).await
        })
    }
}

impl Publish for TestSink {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(async move {
            let mut results = Vec::new();
            for firing in batch {
                self.note(&firing);
                let Target::Bus(bus) = &firing.message.target else {
                    results.push(Err(Undelivered::permanent("not an event")));
                    continue;
                };
                results.push(self.answer(&bus.event_type).await);
            }
            results
        })
    }
}

pub(crate) struct Rig {
    pub(crate) worker: Worker,
    pub(crate) sink: Arc<TestSink>,
    pub(crate) time: Time,
}

pub(crate) fn rig() -> Rig {
    rig_with(|_| {})
}

pub(crate) fn rig_with(change: impl FnOnce(&mut Options)) -> Rig {
    let clock = ManualClock::new(Timestamp::from_millis(BEGAN));
    let counter = Arc::new(AtomicU64::new(1_000));
    let sink = Arc::new(TestSink {
        sent: Mutex::default(),
        gate: Semaphore::new(0),
        clock: clock.clone(),
    });
    let sinks = Sinks {
        callbacks: Some(sink.clone()),
        bus: Some(sink.clone()),
    };
    let mut options = Options::new("test", Instance([9; 16]), "worker-1", sinks);
    options.clock = Arc::new(clock.clone());
    let shared = counter.clone();
    options.counter = Arc::new(move || Duration::from_millis(shared.load(Ordering::SeqCst)));
    change(&mut options);
    Rig {
        worker: Worker::start(options).expect("it starts"),
        sink,
        time: Time { clock, counter },
    }
}

impl Rig {
    pub(crate) fn center(&self) -> Center {
        Center::connect(&self.worker, "test")
    }
}

/// The other end of a connection.
pub(crate) struct Center {
    pub(crate) connection: WorkerConnection,
    pub(crate) credit: u32,
}

impl Center {
    pub(crate) fn connect(worker: &Worker, cluster: &str) -> Self {
        let hello = proto::Hello {
            cluster: cluster.to_owned(),
            name: "center-1".to_owned(),
            ..proto::Hello::default()
        };
        let (connection, served) = pair_of(8_192, hello, worker.hello());
        worker.serve(served);
        Self {
            connection,
            credit: 0,
        }
    }

    #[track_caller]
    pub(crate) fn send(&self, frame: ToFrame) {
        let frame = ToWorker { frame: Some(frame) };
        self.connection.sender.try_send(frame).expect("room");
    }

    pub(crate) fn go(&self, go: proto::Go) {
        self.send(ToFrame::Go(go));
    }

    pub(crate) fn ask(&self, epoch: u64, id: &str) {
        self.send(ToFrame::Ask(proto::Ask {
            shard: 1,
            epoch,
            id: id.to_owned(),
            attempt: 1,
        }));
    }

    pub(crate) fn log(&self, outcome: &proto::Outcome) {
        self.send(ToFrame::Logged(proto::Logged {
            shard: outcome.shard,
            id: outcome.id.clone(),
            attempt: outcome.attempt,
        }));
    }

    /// The next frame that is not credit; `None` at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            let next = timeout(PATIENCE, self.connection.receiver.recv());
            match next.await.expect("a frame in time")?.frame {
                Some(Frame::Credit(credit)) => self.credit += credit.more,
                Some(frame) => return Some(frame),
                None => {}
            }
        }
    }

    pub(crate) async fn outcome(&mut self) -> proto::Outcome {
        match self.frame().await {
            Some(Frame::Outcome(outcome)) => outcome,
            other => panic!("an outcome, and not {other:?}"),
        }
    }

    pub(crate) async fn outcomes(&mut self, count: usize) -> Vec<proto::Outcome> {
        let mut outcomes = Vec::with_capacity(count);
        while outcomes.len() < count {
            outcomes.push(self.outcome().await);
        }
        outcomes
    }

    pub(crate) async fn status(&mut self) -> proto::status::What {
        match self.frame().await {
            Some(Frame::Status(status)) => status.what.expect("an answer"),
            other => panic!("a status, and not {other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self) -> proto::Refused {
        match self.frame().await {
            Some(Frame::Refused(refused)) => refused,
            other => panic!("a refusal, and not {other:?}"),
        }
    }

    /// Whatever was sent before has been read by the worker, and what it said to that was received: the pong is the next frame.
    pub(crate) async fn ping(&mut self) -> proto::Pong {
        self.send(ToFrame::Ping(proto::Ping { number: 77 }));
        match self.frame().await {
            Some(Frame::Pong(pong)) => pong,
            other => panic!("a pong, and not {other:?}"),
        }
    }
}

pub(crate) fn how(outcome: &proto::Outcome) -> How {
    let ending = outcome.ending.clone().expect("an ending");
    ending.how.expect("it says how")
}

pub(crate) fn was_delivered(outcome: &proto::Outcome) -> bool {
    how(outcome) == How::Delivered(true)
}

/// A go of shard 1 in epoch 1, for now.
pub(crate) fn go(id: &str, host: &str) -> proto::Go {
    let callback = proto::Callback {
        url: format!("http://{host}.example/hook"),
        method: "POST".to_owned(),
        ..proto::Callback::default()
    };
    go_to(id, proto::content::Target::Callback(callback))
}

pub(crate) fn event(id: &str, topic: &str, event_type: &str) -> proto::Go {
    let bus = proto::BusTarget {
        topic: topic.to_owned(),
        aggregate_id: "a".to_owned(),
        event_type: event_type.to_owned(),
    };
    go_to(id, proto::content::Target::Bus(bus))
}

pub(crate) fn go_to(id: &str, target: proto::content::Target) -> proto::Go {
    proto::Go {
        shard: 1,
        epoch: 1,
        id: id.to_owned(),
        attempt: 1,
        not_before_ms: BEGAN,
        due_ms: BEGAN,
        accepted_ms: BEGAN - 5_000,
        topic: "reminders".to_owned(),
        content: Some(proto::Content {
            target: Some(target),
            payload: "{}".into(),
            ..proto::Content::default()
        }),
        failures: 0,
    }
}

pub(crate) fn at(go: proto::Go, ms: u64) -> proto::Go {
    proto::Go {
        not_before_ms: ms,
        ..go
    }
}

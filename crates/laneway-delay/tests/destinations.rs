//! Destinations do not wait for each other: hosts that hang or refuse, crowds of hosts, a bus that hangs.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use laneway_delay::clock::Clock;
use laneway_delay::store::MemoryStore;
use laneway_delay::{
    BoxFuture, Delays, Deliver, Failure, Firing, MessageId, Options, Publish, Query, Schedule,
    Sinks, StateName, Submission, Target, Undelivered, When,
};
use rig::{Witness, manual, to_host};
use waiting::wait_for;

/// Hosts whose names begin with `hang` take their time, those with `refuse` fail at once. How late messages to `healthy`
/// were is noted.
#[derive(Clone, Default)]
struct Receivers {
    late: Arc<std::sync::Mutex<Vec<Duration>>>,
    /// How many messages to others were begun between the submission of one to `healthy` and its delivery.
    overtaken: Arc<std::sync::Mutex<Vec<usize>>>,
    others: Arc<AtomicUsize>,
    delays: Arc<std::sync::OnceLock<Delays>>,
}

impl Receivers {
    fn start(&self, options: Options) -> Delays {
        let sinks = Sinks {
            callbacks: Some(Arc::new(self.clone())),
            bus: Some(Arc::new(self.clone())),
        };
        let delays = Delays::in_memory(sinks, options).unwrap();
        let _ = self.delays.set(delays.clone());
        delays
    }

    fn late(&self) -> Vec<Duration> {
        let mut late = self.late.lock().unwrap().clone();
        late.sort();
        late
    }

    /// By how many messages to others 99 of 100 to `healthy` were overtaken at most.
    fn overtaken(&self) -> usize {
        let mut overtaken = self.overtaken.lock().unwrap().clone();
        overtaken.sort_unstable();
        overtaken[overtaken.len() * 99 / 100]
    }

    /// Submits messages to a healthy host one after the other; answers how late 99 of 100 were at most.
    async fn probe(&self, delays: &Delays, count: usize) -> Duration {
        let before = self.late().len();
        for number in 0..count {
            let begun = self.others.load(Ordering::SeqCst).to_string();
            let probe = to("healthy", Duration::from_millis(20)).payload(begun);
            delays.submit_one(probe).await.unwrap();
            if number % 4 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        wait_for!(self.late().len() >= before + count);
        let late = self.late();
        late[late.len() * 99 / 100]
    }
}

impl Deliver for Receivers {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        let Target::Callback(callback) = &firing.message.target else {
            unreachable!("callbacks only");
        };
        let host = callback.url.trim_start_matches("http://").to_owned();
        Box::pin(async move {
            if host.starts_with("healthy") {
                let now = self.delays.get().unwrap().now();
                let before: usize = std::str::from_utf8(&firing.message.payload)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .expect("a number");
                let begun = self.others.load(Ordering::SeqCst);
                self.overtaken.lock().unwrap().push(begun - before);
                self.late.lock().unwrap().push(now.since(firing.due()));
                return Ok(());
            }
            self.others.fetch_add(1, Ordering::SeqCst);
            if host.starts_with("hang") {
                tokio::time::sleep(Duration::from_mins(5)).await;
            }
            if host.starts_with("refuse") {
                return Err(Undelivered::retry("refused"));
            }
            Ok(())
        })
    }
}

impl Publish for Receivers {
    fn publish(&self, _: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        self.others.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
}

fn to(host: &str, after: Duration) -> Submission {
    let target = Target::callback(format!("http://{host}/"));
    Submission::new("t", When::After(after), target)
}

async fn submit(delays: &Delays, submissions: impl Iterator<Item = Submission>) {
    let mut submissions = submissions.peekable();
    while submissions.peek().is_some() {
        let some = submissions.by_ref().take(5000).collect();
        assert!(delays.submit(some).await.iter().all(Result::is_ok));
    }
}

/// Waits until so many are counted. Each tenth has the time of a wait: together they take most of one on a busy machine.
async fn reaches(total: usize, count: impl Fn() -> usize) {
    for part in 1..=10 {
        wait_for!(count() >= total * part / 10, "{part} tenths of {total}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_hang_delay_no_other_host() {
    for (hosts, each) in [(1, 1000), (16, 200), (100, 200), (3000, 1)] {
        let receivers = Receivers::default();
        let delays = receivers.start(Options::default());
        let hanging =
            (0..hosts * each).map(|number| to(&format!("hang{}", number % hosts), Duration::ZERO));
        submit(&delays, hanging).await;
        wait_for!(receivers.others.load(Ordering::SeqCst) >= hosts);
        let late = receivers.probe(&delays, 100).await;
        // A few milliseconds on a machine that does nothing else. Behind those that hang it would be minutes.
        assert!(late < Duration::from_secs(45), "{hosts} × {each}: {late:?}");
        let running = receivers.others.load(Ordering::SeqCst);
        assert!(running <= 64 * hosts, "the cap of each holds: {running}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_hosts_due_at_once_delay_no_other_host() {
    let receivers = Receivers::default();
    let delays = receivers.start(Options::default());
    let crowd = 100_000;
    let due = delays.now() + Duration::from_secs(4);
    let all = (0..crowd).map(|number| {
        let target = Target::callback(format!("http://host{number}/"));
        Submission::new("t", When::At(due), target)
    });
    submit(&delays, all).await;
    wait_for!(delays.now() >= due);
    let late = receivers.probe(&delays, 100).await;
    // On a machine that is too busy for the one, the other tells.
    let overtaken = receivers.overtaken();
    assert!(
        late < Duration::from_secs(5) || overtaken < crowd / 2,
        "{late:?}, behind {overtaken}"
    );
    reaches(crowd, || receivers.others.load(Ordering::SeqCst)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_hosts_than_fit_into_memory_that_all_refuse_delay_no_other_host_and_none_is_lost() {
    for (hosts, near) in [
        (1, 250_000),
        (1_000, 200),
        (5_000, 1_000),
        (50_000, 250_000),
    ] {
        let receivers = Receivers::default();
        let options = Options {
            near,
            retry: Schedule::new([]),
            ..Options::default()
        };
        let delays = receivers.start(options);
        let refusing = (0..hosts).map(|number| to(&format!("refuse{number}"), Duration::ZERO));
        submit(&delays, refusing).await;
        let late = receivers.probe(&delays, 100).await;
        // Without optimisation, while other tests run. Behind all of them it would be most of a minute.
        assert!(late < Duration::from_secs(20), "{hosts}: {late:?}");
        reaches(hosts, || {
            usize::try_from(delays.counts()["t"].dead).unwrap()
        })
        .await;
        assert_eq!(delays.deaths(), hosts as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_that_hangs_delays_no_callback() {
    for (topics, each) in [(1, 5000), (17, 4096), (100, 700)] {
        let receivers = Receivers::default();
        let delays = receivers.start(Options::default());
        let hanging = (0..topics * each).map(|number| {
            let target = Target::bus(format!("orders{}", number % topics), "k", "Due");
            Submission::new("t", When::After(Duration::ZERO), target)
        });
        submit(&delays, hanging).await;
        wait_for!(receivers.others.load(Ordering::SeqCst) >= topics);
        let late = receivers.probe(&delays, 100).await;
        assert!(late < Duration::from_secs(45), "{topics}: {late:?}");
    }
}

#[tokio::test]
async fn a_host_that_takes_nothing_is_left_alone_and_gets_everything_when_it_is_back() {
    let clock = manual();
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let witness = Witness::answering(move |firing| {
        let is_concerned =
            matches!(&firing.message.target, Target::Callback(to) if to.url.contains("down"));
        if up.load(Ordering::SeqCst) || !is_concerned {
            return Ok(());
        }
        Err(Undelivered::new(
            Failure::Unavailable(Duration::from_secs(5)),
            "its circuit is open",
        ))
    });
    let store = Arc::new(MemoryStore::new());
    let delays = Delays::start(
        store,
        Arc::new(clock.clone()),
        witness.sinks(),
        Options::default(),
    )
    .unwrap();
    let due = clock.now() + Duration::from_secs(1);
    submit(&delays, (0..1000).map(|_| to_host("down", due))).await;
    clock.set(due);
    witness.wait_for(1).await;
    wait_for!(delays.counts()["t"].firing == 0);
    let tried = witness.seen().len();
    assert!(tried <= 64, "one batch: {tried}");
    // Another host is served meanwhile.
    delays.submit_one(to_host("up", clock.now())).await.unwrap();
    wait_for!(delays.counts()["t"].delivered == 1);
    // One attempt each time.
    for round in 1..=3 {
        clock.advance(Duration::from_secs(5));
        witness.wait_for(tried + 1 + round).await;
        wait_for!(delays.counts()["t"].firing == 0);
        assert_eq!(witness.seen().len(), tried + 1 + round);
    }
    // Nothing was written about any of it.
    let page = delays
        .list(&Query::new(StateName::Scheduled))
        .await
        .unwrap();
    assert!(
        page.messages
            .iter()
            .all(|message| message.history.is_empty())
    );
    is_up.store(true, Ordering::SeqCst);
    clock.advance(Duration::from_secs(5));
    wait_for!(delays.counts()["t"].delivered == 1001);
}

#[tokio::test]
async fn what_is_put_off_comes_back_in_time_and_can_be_withdrawn_meanwhile() {
    let clock = manual();
    let witness = Witness::answering(|firing| {
        let started = firing.message.record.state();
        let due = firing.due();
        let is_early = matches!(started, laneway_delay::State::Firing { since } if since < due + Duration::from_secs(9));
        if is_early {
            return Err(Undelivered::new(
                Failure::Postponed(Duration::from_secs(10)),
                "not now",
            ));
        }
        Ok(())
    });
    let store = Arc::new(MemoryStore::new());
    let delays = Delays::start(
        store,
        Arc::new(clock.clone()),
        witness.sinks(),
        Options::default(),
    )
    .unwrap();
    let due = clock.now();
    let id = |name: &str| MessageId::new(name).unwrap();
    for name in ["a", "b"] {
        delays
            .submit_one(to_host("h", due).id(id(name)))
            .await
            .unwrap();
    }
    witness.wait_for(2).await;
    wait_for!(delays.counts()["t"].firing == 0);
    delays.withdraw(&id("b")).await.unwrap();
    clock.advance(Duration::from_millis(9_999));
    tokio::task::yield_now().await;
    assert_eq!(witness.seen().len(), 2);
    clock.advance(Duration::from_millis(1));
    wait_for!(delays.counts()["t"].delivered == 1);
    let seen = witness.seen();
    assert_eq!(
        (seen.len(), seen[2].id.as_str(), seen[2].attempt),
        (3, "a", 1)
    );
}

#[tokio::test]
async fn those_that_fail_together_do_not_come_back_together_nor_too_early() {
    let clock = manual();
    let witness = Witness::answering(|firing| match firing.attempt() {
        1 => Err(Undelivered::retry("status 500")),
        _ => Ok(()),
    });
    let store = Arc::new(MemoryStore::new());
    let options = Options {
        retry: Schedule::new([Duration::from_secs(100)]),
        ..Options::default()
    };
    let delays = Delays::start(store, Arc::new(clock.clone()), witness.sinks(), options).unwrap();
    let due = clock.now();
    submit(&delays, (0..1000).map(|_| to_host("h", due))).await;
    witness.wait_for(1000).await;
    wait_for!(delays.counts()["t"].firing == 0);
    clock.set(due + Duration::from_secs(100));
    let mut most = 0;
    for _ in 0..100 {
        let before = delays.counts()["t"].delivered;
        clock.advance(Duration::from_millis(100));
        tokio::time::sleep(Duration::from_millis(2)).await;
        wait_for!(delays.counts()["t"].firing == 0);
        most = most.max(delays.counts()["t"].delivered - before);
    }
    clock.advance(Duration::from_secs(1));
    wait_for!(delays.counts()["t"].delivered == 1000);
    assert!(most < 200, "{most} in a tenth of a second");
    let seen = witness.seen();
    let again = seen.iter().filter(|seen| seen.attempt == 2);
    for seen in again {
        assert!(seen.at >= due + Duration::from_secs(100));
    }
}

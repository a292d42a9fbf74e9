//! Before every attempt a handler is asked whether it may begin.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway_lanes::{Admission, Engine, Failure, Handler, Job, Jobs, Options, Outcome};
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{Item, item};

#[derive(Clone, Default)]
struct Doorkeeper {
    open: Arc<AtomicBool>,
    ended: Arc<Mutex<Vec<(String, u64, Outcome)>>>,
}

impl Doorkeeper {
    fn ended(&self) -> Vec<(String, u64, Outcome)> {
        self.ended.lock().unwrap().clone()
    }
}

impl Handler<Item> for Doorkeeper {
    fn admits(&self, item: &Item) -> Admission {
        match item.key() {
            Some("gone") => Admission::Never,
            Some("later") if !self.open.load(Ordering::SeqCst) => {
                Admission::Later(Duration::from_secs(1))
            }
            _ => Admission::Now,
        }
    }

    async fn handle(&self, _: Jobs<'_, Item>) -> Result<(), Failure> {
        Ok(())
    }

    fn finished(&self, item: Item, outcome: Outcome) {
        let key = item.key().unwrap_or_default().to_owned();
        self.ended.lock().unwrap().push((key, item.seq, outcome));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_admitted_waits_without_a_worker_or_is_handed_back() {
    let engine = Engine::start(Options::default().workers(1)).expect("options are fine");
    let door = Doorkeeper::default();
    let intake = engine.topic("t", door.clone()).expect("a new topic");
    for seq in 0..2 {
        for key in ["later", "gone", "now"] {
            intake.submit(item(key, seq)).await.expect("there is room");
        }
    }
    // The only worker is free for the others.
    wait_for!(door.ended().len() == 4);
    let of = |key: &str| -> Vec<_> {
        let ended = door.ended().into_iter();
        ended
            .filter(|(of, _, _)| of == key)
            .map(|(_, seq, outcome)| (seq, outcome))
            .collect()
    };
    assert_eq!(of("now"), [(0, Outcome::Done), (1, Outcome::Done)]);
    assert_eq!(
        of("gone"),
        [(0, Outcome::Abandoned), (1, Outcome::Abandoned)]
    );
    let began = Instant::now();
    door.open.store(true, Ordering::SeqCst);
    wait_for!(door.ended().len() == 6);
    assert!(began.elapsed() <= Duration::from_secs(2));
    assert_eq!(of("later"), [(0, Outcome::Done), (1, Outcome::Done)]);
    assert_eq!(engine.stats().topics[0].failed, 0, "waiting is no attempt");
}

/// Admits nothing until it is opened, by groups of lanes.
#[derive(Clone, Default)]
struct Together {
    open: Arc<[AtomicBool; 2]>,
    asked: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Handler<Item> for Together {
    fn admits(&self, item: &Item) -> Admission {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let key: u64 = item.key().and_then(|k| k.parse().ok()).unwrap_or_default();
        let open = &self.open[usize::from(key % 2 == 1)];
        if open.load(Ordering::SeqCst) {
            return Admission::Now;
        }
        Admission::Held {
            group: key % 2,
            every: Duration::from_millis(20),
        }
    }

    async fn handle(&self, _: Jobs<'_, Item>) -> Result<(), Failure> {
        Ok(())
    }

    fn finished(&self, _: Item, _: Outcome) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn lanes_that_are_held_together_ask_one_at_a_time_and_go_together() {
    const LANES: usize = 10_000;
    let engine = Engine::start(Options::default().workers(4)).expect("options are fine");
    let door = Together::default();
    let intake = engine.topic("t", door.clone()).expect("a new topic");
    for seq in 0..2 {
        for lane in 0..LANES {
            let item = item(&lane.to_string(), seq);
            intake.submit(item).await.expect("there is room");
        }
    }
    wait_for!(engine.stats().topics[0].backing_off == LANES);
    let asked = door.asked.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = door.asked.load(Ordering::SeqCst) - asked;
    assert!(
        (100..=600).contains(&asked),
        "two groups, every 20 ms for 5 s: {asked} questions"
    );
    let began = Instant::now();
    door.open[0].store(true, Ordering::SeqCst);
    wait_for!(door.ended.load(Ordering::SeqCst) == LANES);
    assert!(began.elapsed() <= Duration::from_millis(50), "at once");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(door.ended.load(Ordering::SeqCst), LANES, "the others wait");
    door.open[1].store(true, Ordering::SeqCst);
    wait_for!(door.ended.load(Ordering::SeqCst) == 2 * LANES);
}

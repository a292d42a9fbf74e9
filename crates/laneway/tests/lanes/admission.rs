//! Before every attempt a handler is asked whether it may begin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::lanes::{Admission, Engine, Failure, Handler, Job, Jobs, Options, Outcome};
use tokio::time::Instant;

use crate::support::{Item, item, until};

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
    until(|| door.ended().len() == 4).await;
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
    until(|| door.ended().len() == 6).await;
    assert!(began.elapsed() <= Duration::from_secs(2));
    assert_eq!(of("later"), [(0, Outcome::Done), (1, Outcome::Done)]);
    assert_eq!(engine.stats().topics[0].failed, 0, "waiting is no attempt");
}

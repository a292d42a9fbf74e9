//! Keys come and go by the million, and the memory comes back.
//!
//! A program of its own: what is measured is the whole process. It starts itself once more with an
//! allocator (glibc's) that hands large blocks back to the system when they are freed. Left alone it
//! learns to keep them, and the test would measure how much it likes to keep.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use laneway_lanes::{Bound, Drain, Engine, Failure, Job, LaneBy, Options};
use tokio::sync::Semaphore;

const KEYS: u32 = 1_000_000;
const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_mins(2);

/// A job without memory of its own, so that all that is measured is the engine's.
struct Visit {
    key: [u8; 12],
    length: usize,
}

impl Visit {
    fn new(number: u32) -> Self {
        struct Text(Visit);
        impl Write for Text {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                let end = self.0.length + text.len();
                let place = self.0.key.get_mut(self.0.length..end);
                place
                    .ok_or(std::fmt::Error)?
                    .copy_from_slice(text.as_bytes());
                self.0.length = end;
                Ok(())
            }
        }
        let mut text = Text(Self {
            key: [0; 12],
            length: 0,
        });
        write!(text, "v-{number}").expect("ten digits and two characters fit");
        text.0
    }
}

impl Job for Visit {
    fn key(&self) -> Option<&str> {
        std::str::from_utf8(&self.key[..self.length]).ok()
    }
}

/// What the process has in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: usize = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("the second number is the resident pages");
    pages * 4096
}

#[derive(Debug)]
struct Measured {
    before: usize,
    with_a_million: usize,
    after: usize,
}

/// A million keys have a job each at the same time; then they are all gone.
async fn come_and_go(engine: &Engine, lane_by: LaneBy) -> Measured {
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let options = engine_options().topic_options().lane_by(lane_by);
    let handler = move |_: &Visit| {
        let gate = Arc::clone(&closed);
        async move {
            let _pass = gate.acquire().await?;
            Ok::<(), Failure>(())
        }
    };
    let intake = engine
        .topic_with("visits", options, handler)
        .expect("a new topic");
    let before = resident();
    for number in 0..KEYS {
        intake
            .try_submit(Visit::new(number))
            .expect("there is room for a million");
    }
    if lane_by == LaneBy::Key {
        assert_eq!(engine.stats().topics[0].lanes, KEYS as usize);
    }
    let with_a_million = resident();
    gate.add_permits(16);
    tokio::time::timeout(PATIENCE, intake.quiet())
        .await
        .expect("all are handled");
    let topic = &engine.stats().topics[0];
    assert_eq!((topic.lanes, topic.depth), (0, Bound::new(0, 0)));
    assert_eq!(topic.processed, u64::from(KEYS));
    assert!(topic.hottest.len() <= 10);
    let after = resident();
    intake.close(Drain::Queued, PATIENCE).await;
    Measured {
        before,
        with_a_million,
        after,
    }
}

fn engine_options() -> Options {
    Options::default()
        .workers(256)
        .most_topics(1)
        .lane_bound(KEYS as usize)
        .total(Bound::new(KEYS as usize, MIB))
}

const TEST: &str = "a_million_keys_come_and_go_and_the_memory_comes_back";
const IN_CHILD: &str = "LANEWAY_MEMORY_TEST";

#[test]
fn a_million_keys_come_and_go_and_the_memory_comes_back() {
    if std::env::var_os(IN_CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .expect("a runtime");
        return runtime.block_on(measure());
    }
    let itself = std::env::current_exe().expect("the path of this program");
    let child = std::process::Command::new(itself)
        .args(["--exact", TEST, "--nocapture"])
        .env(IN_CHILD, "1")
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        // What is small is freed where the next round finds it, whichever thread did so.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .expect("it starts");
    println!("{}", String::from_utf8_lossy(&child.stdout));
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

async fn measure() {
    let engine = Engine::start(engine_options()).expect("the options are good");
    // At first the process grows to what it needs anyway, in one round or in two. One that loses memory goes on growing.
    let first = come_and_go(&engine, LaneBy::Key).await;
    println!("first: {first:?}");
    let second = come_and_go(&engine, LaneBy::Key).await;
    println!("second: {second:?}");
    for round in [LaneBy::Key, LaneBy::hash(256)] {
        let measured = come_and_go(&engine, round).await;
        println!("{round:?}: {measured:?}");
        let grown = measured.with_a_million - measured.before;
        assert!(
            grown > 32 * MIB,
            "a million jobs are something: {measured:?}"
        );
        let kept = measured.after.saturating_sub(measured.before);
        assert!(
            kept < grown / 20,
            "nineteen parts in twenty come back: {measured:?}"
        );
    }
    let last = resident();
    assert!(
        last < first.before + 32 * MIB,
        "three million keys later: {} MiB at first, {} MiB now",
        first.before / MIB,
        last / MIB
    );
    assert!(engine.close(Drain::Queued, PATIENCE).await.is_clean());
}

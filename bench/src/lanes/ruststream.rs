//! `RustStream` on its memory broker, with as many workers by key as ours has workers.
//!
//! Its handlers are functions without a place for state of their own, so what a run needs is kept
//! beside them. One contender runs at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};
use ruststream::memory::PARTITION_KEY_HEADER;
use ruststream::memory::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::frame::Sample;
use crate::workload::{Work, Workload};

#[derive(Debug, Deserialize, Serialize, Outgoing)]
struct Order {
    key: u32,
    sequence: u32,
}

struct Current {
    work: Work,
    left: AtomicUsize,
    done: Notify,
}

static CURRENT: Mutex<Option<Arc<Current>>> = Mutex::new(None);

fn current() -> Option<Arc<Current>> {
    CURRENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

#[subscriber("orders", workers(128, by_key))]
async fn handle(order: &Order) -> HandlerOutcome {
    std::hint::black_box((order.key, order.sequence));
    if let Some(current) = current() {
        current.work.run().await;
        if current.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            current.done.notify_one();
        }
    }
    HandlerOutcome::ack()
}

/// How long it takes to bring all events through.
pub(super) async fn run(workload: Arc<Workload>, work: Work) -> Result<Sample> {
    let count = workload.events.len();
    let current = Arc::new(Current {
        work,
        left: AtomicUsize::new(count),
        done: Notify::new(),
    });
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&current));

    let broker = MemoryBroker::new();
    let running = RustStream::new(AppInfo::new("bench", "0.1.0"))
        .with_broker(broker.clone(), |b| {
            b.include(handle);
        })
        .start()
        .await
        .map_err(|error| anyhow!("{error}"))?;
    let publisher = broker.publisher();

    let started = Instant::now();
    for event in &workload.events {
        let order = Order {
            key: event.key,
            sequence: event.sequence,
        };
        let mut headers = HeaderMap::new();
        headers.insert(PARTITION_KEY_HEADER, workload.key(*event).to_owned());
        publisher
            .message(&order)
            .with_headers(headers)
            .to("orders")
            .publish()
            .await
            .map_err(|error| anyhow!("{error}"))?;
    }
    current.done.notified().await;
    let elapsed = started.elapsed();

    running
        .shutdown()
        .await
        .map_err(|error| anyhow!("{error}"))?;
    Ok(match work {
        Work::Nothing => Sample::rate(count, elapsed),
        Work::Wait(_) => Sample::time(elapsed),
    })
}

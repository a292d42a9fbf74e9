//! Graceful shutdown, and what is left comes again.
//!
//! ```sh
//! cargo run -p laneway --example shutdown
//! ```
//!
//! More work is published than can be done in time. After two seconds, or at Ctrl-C, the bus closes:
//! handlers that run are finished, what waits is left. Look at the report of what was left, and at
//! the second run over the same directory: it handles exactly that, each key where it had stopped.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use laneway::lanes::CloseReport;
use laneway::{Bus, Envelope, Event, EventHandler, Failure, testing};
use serde_json::json;
use tokio::time::sleep;

const KEYS: u32 = 4;
const EVENTS_PER_KEY: u32 = 50;

/// Takes 100 ms for each event, and notes the numbers it has seen of each key.
#[derive(Clone, Default)]
struct Worker(Arc<Mutex<BTreeMap<String, Vec<u32>>>>);

impl EventHandler for Worker {
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        sleep(Duration::from_millis(100)).await;
        let mut seen = self.0.lock().map_err(|_| Failure::new("poisoned"))?;
        seen.entry(event.aggregate_id().to_string())
            .or_default()
            .push(event.json()?);
        Ok(())
    }
}

impl Worker {
    fn handled(&self) -> usize {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.values().map(Vec::len).sum()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("file:{}", directory.path().display());
    let worker = Worker::default();

    let bus = Bus::open(&url).await?;
    let all = (KEYS * EVENTS_PER_KEY) as usize;
    for number in 1..=EVENTS_PER_KEY {
        for key in 1..=KEYS {
            let event = Envelope::builder(format!("job-{key}"), "Step").json(&json!(number))?;
            bus.publish_envelope("jobs", &event).await?;
        }
    }
    println!("published {all} events; Ctrl-C, or wait two seconds");

    bus.subscription("jobs")
        .envelope_handler(worker.clone())
        .await?;
    tokio::select! {
        signal = tokio::signal::ctrl_c() => signal?,
        () = sleep(Duration::from_secs(2)) => {}
    }
    println!("\nclosing");
    let report = bus.close(Duration::from_secs(1)).await?;
    println!("handled {} of {all}", worker.handled());
    print(&report);

    println!("\nonce more, over the same directory");
    let bus = Bus::open(&url).await?;
    bus.subscription("jobs")
        .envelope_handler(worker.clone())
        .await?;
    testing::settled(&bus).await?;
    print(&bus.close(Duration::from_secs(1)).await?);

    for (key, numbers) in worker.0.lock().map_err(|_| "poisoned")?.iter() {
        assert!(numbers.iter().copied().eq(1..=EVENTS_PER_KEY));
        println!("{key}: 1 to {EVENTS_PER_KEY}, each once, in order");
    }
    Ok(())
}

fn print(report: &CloseReport) {
    if report.is_clean() {
        println!("nothing was left in memory");
    }
    for left in &report.left {
        println!(
            "left in {}: {} events, of {}",
            left.topic,
            left.abandoned,
            left.keys.join(", ")
        );
    }
}

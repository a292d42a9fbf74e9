//! A handler that fails: retries, dead letters, a fix, and the replay.
//!
//! ```sh
//! cargo run -p laneway --example failing
//! ```
//!
//! The card terminal is down. Look at how every payment is tried three times, with growing waits, and
//! how it is then put aside with the reason instead of being lost or blocking the next one. When the
//! terminal works again, the dead letters are replayed: only the group that failed gets them.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::{Bus, Envelope, Failure, testing};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::open("memory:").await?;
    let terminal_works = Arc::new(AtomicBool::new(false));

    let works = terminal_works.clone();
    bus.subscription("payments")
        .retry(RetryPolicy::exponential(
            3,
            Duration::from_millis(50),
            Duration::from_secs(1),
        )?)
        .envelope(move |payment| {
            let works = works.clone();
            async move {
                let (customer, attempt) = (payment.aggregate_id(), payment.context().attempt());
                if works.load(Ordering::Relaxed) {
                    println!("{customer}: charged, attempt {attempt}");
                    return Ok(());
                }
                println!("{customer}: failed, attempt {attempt}");
                // Any error with `?` would do the same; Failure::fatal would end it at once.
                Err(Failure::new("the card terminal does not answer"))
            }
        })
        .await?;

    for customer in ["ada", "grace"] {
        let payment =
            Envelope::builder(customer, "PaymentRequested").json(&json!({ "cents": 4_200 }))?;
        bus.publish_envelope("payments", &payment).await?;
    }
    testing::settled(&bus).await?;

    let dead = bus.dead_letters("payments").await?;
    println!("\ndead letters:");
    for letter in dead.list(100).await? {
        println!(
            "{}  after {} attempts of group {}: {}",
            letter.key.unwrap_or_default(),
            letter.attempts,
            letter.group,
            letter.reason
        );
    }

    terminal_works.store(true, Ordering::Relaxed);
    println!("\nthe terminal works again\n");
    let replayed = dead.replay_all().await?;
    testing::settled(&bus).await?;

    let left = dead.list(100).await?.len();
    println!("\nreplayed {replayed} dead letters, {left} left");
    bus.close(Duration::from_secs(5)).await?;
    Ok(())
}

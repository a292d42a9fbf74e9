//! A key that fails is parked: it and everything after it wait, in order, until somebody releases it.
//!
//! ```sh
//! cargo run -p laneway --example parking
//! ```
//!
//! Account `ada` is frozen and its first transfer fails for good. A dead letter would let the second
//! one go first, which is wrong for accounts. Look at how `grace` goes on meanwhile, and how all of
//! `ada` is handled in order after the release: what was parked first, then what came since.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::{Bus, Envelope, Exhausted, Failure, testing};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::open("memory:").await?;
    let frozen = Arc::new(AtomicBool::new(true));

    let is_frozen = frozen.clone();
    bus.subscription("transfers")
        .group("ledger")
        .retry(RetryPolicy::exponential(
            2,
            Duration::from_millis(50),
            Duration::from_secs(1),
        )?)
        .on_exhausted(Exhausted::ParkKey)
        .envelope(move |transfer| {
            let frozen = is_frozen.load(Ordering::Relaxed);
            async move {
                let account = transfer.aggregate_id().as_str();
                let number = transfer.json::<u32>()?;
                if frozen && account == "ada" {
                    println!("{account}: transfer {number} failed");
                    return Err(Failure::new("the account is frozen"));
                }
                println!("{account}: transfer {number} booked");
                Ok(())
            }
        })
        .await?;

    for number in 1..=3 {
        for account in ["ada", "grace"] {
            publish(&bus, account, number).await?;
        }
    }
    testing::settled(&bus).await?;

    let parked = bus.parked("transfers").await?;
    println!("\nparked:");
    for letter in parked.list(100).await? {
        println!("{}  {}", letter.key.unwrap_or_default(), letter.reason);
    }

    frozen.store(false, Ordering::Relaxed);
    println!("\nthe account is not frozen any more");
    for (group, account) in parked.keys().await? {
        parked.release(&group, &account).await?;
    }
    publish(&bus, "ada", 4).await?;
    testing::settled(&bus).await?;

    println!("\nparked: {}", parked.list(100).await?.len());
    bus.close(Duration::from_secs(5)).await?;
    Ok(())
}

async fn publish(bus: &Bus, account: &str, number: u32) -> Result<(), Box<dyn Error>> {
    let transfer = Envelope::builder(account, "TransferRequested").json(&json!(number))?;
    bus.publish_envelope("transfers", &transfer).await?;
    Ok(())
}

//! Domain events, and a projection that follows them.
//!
//! ```sh
//! cargo run -p laneway --example orders
//! ```
//!
//! Three orders go through their steps at the same time. Look at one order in the output: its lines
//! come in the order in which they were published, every time you run it. Then look at all of them:
//! they mix, because a slow order delays nobody but itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::{Bus, Envelope, Event, EventHandler, Failure, testing};
use serde_json::json;
use tokio::time::sleep;

const STEPS: [&str; 4] = ["OrderPlaced", "OrderPaid", "OrderPacked", "OrderShipped"];

/// What is known of every order: the steps that it has taken.
#[derive(Clone, Default)]
struct Projection(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl EventHandler for Projection {
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        // As if a database took its time: 10 ms for order-1, 30 ms for order-3.
        let slowness = event.json::<serde_json::Value>()?["slowness"].as_u64();
        sleep(Duration::from_millis(10 * slowness.unwrap_or(1))).await;

        let order = event.aggregate_id().to_string();
        println!("{order}  {}", event.event_type());
        let mut orders = self.0.lock().map_err(|_| Failure::new("poisoned"))?;
        orders
            .entry(order)
            .or_default()
            .push(event.event_type().to_owned());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::open("memory:").await?;
    let projection = Projection::default();
    bus.subscription("orders")
        .envelope_handler(projection.clone())
        .await?;

    // The first step of every order, then the second of every order, and so on.
    for step in STEPS {
        for order in 1..=3 {
            let event = Envelope::builder(format!("order-{order}"), step)
                .json(&json!({ "slowness": order }))?;
            bus.publish_envelope("orders", &event).await?;
        }
    }
    println!("published {} events\n", 3 * STEPS.len());

    // A service would go on for ever; this one waits until everything is handled.
    testing::settled(&bus).await?;
    bus.close(Duration::from_secs(5)).await?;

    let orders = projection.0.lock().map_err(|_| "poisoned")?;
    println!("\nthe projection:");
    for (order, steps) in orders.iter() {
        println!("{order}  {}", steps.join(" → "));
    }
    assert!(orders.values().all(|steps| steps == &STEPS));
    Ok(())
}

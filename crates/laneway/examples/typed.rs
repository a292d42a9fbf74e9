//! Payloads as Rust types, by serde.
//!
//! ```sh
//! cargo run -p laneway --example typed
//! ```
//!
//! The handler gets a `Reading` and never sees JSON. Look at the third event: its payload is not a
//! `Reading`. Trying again would not change that, so it goes to the dead letters at once, and the
//! fourth one follows.

use std::error::Error;
use std::time::Duration;

use laneway::{Bus, Envelope, Event, testing};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Serialize, Deserialize)]
struct Reading {
    celsius: f64,
    #[serde(default)]
    humidity: Option<u8>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::open("memory:").await?;
    bus.subscription("readings")
        .typed(|reading: Reading, event: Event| async move {
            print!("{}: {} °C", event.aggregate_id(), reading.celsius);
            match reading.humidity {
                Some(percent) => println!(", {percent} % humidity"),
                None => println!(),
            }
            Ok(())
        })
        .await?;

    let sensor = || Envelope::builder("greenhouse", "Measured");
    let typed = Reading {
        celsius: 21.5,
        humidity: Some(60),
    };
    bus.publish_envelope_batch(
        "readings",
        &[
            sensor().json(&typed)?,
            // An older sensor; serde fills in what is missing.
            sensor().json(&json!({ "celsius": 22.0 }))?,
            sensor().json(&json!({ "fahrenheit": 72 }))?,
            sensor().json(&json!({ "celsius": 22.4 }))?,
        ],
    )
    .await?;

    testing::settled(&bus).await?;
    println!();
    for letter in bus.dead_letters("readings").await?.list(100).await? {
        println!("dead letter: {}", letter.reason);
        // What was published is kept as it was.
        let event = Envelope::decode(letter.record.payload)?;
        println!(
            "             {}",
            String::from_utf8_lossy(event.payload().data())
        );
    }
    bus.close(Duration::from_secs(5)).await?;
    Ok(())
}

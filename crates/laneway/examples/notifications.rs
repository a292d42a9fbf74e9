//! Plain messages: for whoever listens now, at most once, in no order.
//!
//! ```sh
//! cargo run -p laneway --example notifications
//! ```
//!
//! Two groups listen, so both get everything. One message makes the mailer fail: it is counted and
//! reported, and it does not come again. For what must not get lost there are domain events, as in
//! the example `orders`.

use std::error::Error;
use std::time::Duration;

use laneway::{Bus, Failure, Outgoing, testing};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::open("memory:").await?;

    let mailer = bus
        .subscription("notices")
        .group("mailer")
        .message(|notice| async move {
            let to = notice.headers().get_str("to").unwrap_or("everybody");
            if to == "nobody" {
                return Err(Failure::new("no such mailbox"));
            }
            println!("mail to {to}: {}", text(notice.payload()));
            Ok(())
        })
        .await?;
    let archive = bus
        .subscription("notices")
        .group("archive")
        .message(|notice| async move {
            println!("archived: {}", text(notice.payload()));
            Ok(())
        })
        .await?;

    // Bytes are enough; headers go with them if wanted.
    bus.publish("notices", "the shop opens").await?;
    for to in ["ada", "nobody", "grace"] {
        let notice = Outgoing::new("your parcel has been sent").header("to", to)?;
        bus.publish("notices", notice).await?;
    }

    testing::settled(&bus).await?;
    println!();
    for subscription in [&mailer, &archive] {
        let figures = subscription.stats();
        println!(
            "{}: {} handled, {} failed",
            subscription.group(),
            figures.handled,
            figures.failed
        );
    }
    bus.close(Duration::from_secs(5)).await?;
    Ok(())
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).into_owned()
}

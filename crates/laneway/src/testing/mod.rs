//! What tests of handlers are made of.
//!
//! - [`bus`]: a bus in memory.
//! - [`settled`]: waits until everything that was published is settled by every group that is
//!   subscribed. No test needs to sleep and hope.
//! - [`Faults`]: handlers that fail, panic and dawdle, as the seed says.
//! - [`Witness`]: records what happens to every event, and gives the [`Verdict`](history::Verdict):
//!   is everything handled, in order per aggregate, one at a time?
//! - [`publish_foreign`]: publishes what some other program might: no envelope at all.
//! - [`history`]: the recorder and the checker behind the witness. The engine, every broker and every
//!   fault run of this repository are judged by it.
//!
//! # Example
//!
//! A handler that must survive failures. The clock is paused, so the waits between attempts cost
//! nothing, and the test takes milliseconds.
//!
//! ```
//! use laneway::testing::{self, Faults, Witness};
//! use laneway::{Envelope, Event, Failure};
//!
//! async fn handle(event: Event) -> Result<(), Failure> {
//!     let _total: u32 = event.json()?;
//!     Ok(())
//! }
//!
//! // In a test of yours: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let bus = testing::bus().await;
//!     let witness = Witness::new();
//!     // One attempt in ten fails, one in a hundred panics. The witness is inside: it sees what
//!     // your handler sees.
//!     let faults = Faults::seeded(7).failing(0.1).panicking(0.01);
//!     bus.subscription("orders")
//!         .envelope_handler(witness.watching(faults.around(handle)))
//!         .await?;
//!
//!     for number in 0..100 {
//!         let order = format!("order-{}", number % 10);
//!         let placed = Envelope::builder(order, "OrderPlaced").json(&number)?;
//!         witness.publish(&bus, "orders", &placed).await?;
//!     }
//!     testing::settled(&bus).await?;
//!     witness.verdict().assert_ok();
//!     Ok(())
//! }
//! ```
//!
//! # Virtual time
//!
//! All waits of the bus (between attempts, for time limits and rate limits) are tokio's, so its
//! paused clock works: put `start_paused = true` into `#[tokio::test]`, with tokio's feature
//! `test-util` among your dev-dependencies. Time then stands still while anything can run, and jumps
//! to the next timer when nothing can. [`pass`] lets an hour go by in no time, with everything that
//! is due in it. What is not tokio's time is as ever: the timestamps of records, and with them
//! retention and the age of a backlog. Nor does a disk keep to a paused clock: use it with
//! `memory:` only.

mod faults;
mod foreign;
pub mod history;
mod settled;
mod witness;

use std::time::Duration;

pub use faults::{Faults, Faulty};
pub use foreign::publish_foreign;
pub use settled::{Pending, Unsettled, settled, settled_within};
pub use witness::{Watched, Witness};

use crate::Bus;

/// A bus in memory. Every one is a world of its own.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn bus() -> Bus {
    match Bus::open("memory:").await {
        Ok(bus) => bus,
        Err(error) => panic!("a bus in memory needs nothing but a runtime: {error}"),
    }
}

/// Lets time go by: with the clock paused in no time at all, and everything that is due meanwhile
/// happens, in order. See [virtual time](self#virtual-time).
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

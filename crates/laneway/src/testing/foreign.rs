//! Records that no publisher of this bus would write.

use crate::record::Record;
use crate::{Bus, Error, Receipt};

/// Publishes a record to a topic as it is, whatever it is: what another program might write there.
/// Nothing is checked. A record that is no event goes to the dead letters of a domain topic, and
/// this is how to see what you make of them.
///
/// ```
/// use laneway::record::Record;
/// use laneway::testing;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = testing::bus().await;
/// bus.subscribe_envelope("orders", |_| async { Ok(()) }).await?;
///
/// let noise = Record { payload: "noise".into(), ..Record::default() };
/// testing::publish_foreign(&bus, "orders", noise).await?;
/// testing::settled(&bus).await?;
/// assert_eq!(bus.dead_letters("orders").await?.list(10).await?.len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the topic does not exist, or the broker fails.
pub async fn publish_foreign(bus: &Bus, topic: &str, record: Record) -> Result<Receipt, Error> {
    bus.publish_record(topic, record).await
}

//! "There is no such message", said only when that is sure.
//!
//! What was accepted is in the intake, and its owner may not have read it yet: just now, or for as long as a takeover takes.
//! So before a 404 the intake of the shard is read to where it ended, and then the owner is asked again.

use std::time::Duration;

use laneway::DELAY_TOPIC;
use laneway_center::INTAKE_GROUP;
use laneway_delay::MessageId;
use tokio::time::{Instant, sleep};

use super::{Receive, WITHIN};
use crate::cluster::NoOwner;
use crate::messages::Error;

/// Between two looks at the intake.
const PAUSE: Duration = Duration::from_millis(20);

/// How much the clock of the broker may be ahead of ours.
const SKEW: Duration = Duration::from_secs(1);

/// Whether an owner said that there is no such message.
pub(super) fn is_missing<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Delay(laneway_delay::Error::NotFound(_))))
}

impl Receive {
    /// Waits until the owner has decided on all that was in the intake of the shard of a message at a moment.
    pub(super) async fn intake_read(&self, id: &MessageId, since: Instant) -> Result<(), Error> {
        let shard = self.shard_of(id);
        let deadline = Instant::now() + WITHIN;
        loop {
            let reason = match self.bus.backlog(DELAY_TOPIC, INTAKE_GROUP).await {
                Ok(lags) => {
                    let lag = lags.iter().find(|lag| lag.partition == shard);
                    let is_read = lag.is_none_or(|lag| {
                        let newer = |oldest| oldest + SKEW < since.elapsed();
                        lag.records == 0 || lag.oldest.is_some_and(newer)
                    });
                    if is_read {
                        return Ok(());
                    }
                    "it has not read its intake yet".to_owned()
                }
                Err(error) => error.to_string(),
            };
            if Instant::now() + PAUSE >= deadline {
                let may_have_happened = false;
                return Err(NoOwner {
                    shard,
                    reason,
                    may_have_happened,
                }
                .into());
            }
            sleep(PAUSE).await;
        }
    }
}

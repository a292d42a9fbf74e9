//! Waiting until everything is settled.

use std::fmt;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::lanes::after;
use crate::{Bus, Error, State};

/// How long [`settled`] waits. All attempts of the default retry policy fit into it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Something was not settled in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsettled {
    /// How long it was waited for.
    pub waited: Duration,
    /// What was left.
    pub pending: Vec<Pending>,
    /// What the broker said when it was asked, if it failed.
    pub broker: Option<String>,
}

/// What one subscription had not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Its topic.
    pub topic: String,
    /// Its group.
    pub group: String,
    /// How many events or messages.
    pub records: u64,
    /// How it was doing.
    pub state: State,
}

impl std::error::Error for Unsettled {}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not settled within {:?}", self.waited)?;
        if let Some(broker) = &self.broker {
            write!(f, ": {broker}")?;
        }
        for pending in &self.pending {
            let Pending {
                topic,
                group,
                records,
                state,
            } = pending;
            write!(f, "; {records} of {topic} for group {group}")?;
            match state {
                State::Running => {}
                State::Failing(reason) => write!(f, ", which fails: {reason}")?,
                State::Stopped(reason) => write!(f, ", which has stopped: {reason}")?,
                State::Closed => f.write_str(", which is closed")?,
            }
        }
        Ok(())
    }
}

/// Waits until everything that was published is settled by every group that is subscribed: handled,
/// put aside as a dead letter, or parked. Plain messages are waited for until their handlers are
/// done. What handlers publish is waited for like everything else.
///
/// Up to ten seconds; [`settled_within`] waits as long as you like.
///
/// ```
/// use laneway::{Envelope, testing};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = testing::bus().await;
/// let orders = bus.subscribe_envelope("orders", |_| async { Ok(()) }).await?;
/// bus.publish_envelope("orders", &Envelope::builder("order-1", "Placed").json(&1)?).await?;
/// testing::settled(&bus).await?;
/// assert_eq!(orders.stats().handled, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the time is over, or at once when a subscription has stopped with something left to do. It
/// says what was left.
pub async fn settled(bus: &Bus) -> Result<(), Unsettled> {
    settled_within(bus, TIMEOUT).await
}

/// As [`settled`], for as long as you say.
///
/// # Errors
/// As [`settled`].
pub async fn settled_within(bus: &Bus, timeout: Duration) -> Result<(), Unsettled> {
    let deadline = after(timeout);
    let mut progress = bus.progress();
    loop {
        progress.mark_unchanged();
        let (pending, broker) = match bus.unsettled().await {
            Ok(pending) => (pending.into_iter().map(Pending::from).collect(), None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if pending.is_empty() && broker.is_none() {
            return Ok(());
        }
        let hopeless = matches!(broker, Some(Error::Closed))
            || pending.iter().any(Pending::is_over)
            || timeout_at(deadline, progress.changed()).await.is_err();
        if hopeless {
            return Err(Unsettled {
                waited: timeout,
                pending,
                broker: broker.map(|error| error.to_string()),
            });
        }
    }
}

impl Pending {
    fn is_over(&self) -> bool {
        matches!(self.state, State::Stopped(_) | State::Closed)
    }
}

impl From<crate::bus::Unsettled> for Pending {
    fn from(unsettled: crate::bus::Unsettled) -> Self {
        Self {
            topic: unsettled.topic.to_string(),
            group: unsettled.group,
            records: unsettled.records,
            state: unsettled.state,
        }
    }
}

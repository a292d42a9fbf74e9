//! Warnings that a storm of failures does not turn into a flood.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// So many are said in a row.
const IN_A_ROW: u32 = 10;
/// And then one more each time that this has passed.
const EVERY: Duration = Duration::from_secs(1);

/// The warnings of a subscription.
#[derive(Debug, Default)]
pub(super) struct Warnings(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    /// How many of those in a row are used up, at that time.
    used: u32,
    at: Option<Instant>,
    /// Since the last one that was said.
    unsaid: u64,
}

impl Warnings {
    /// Whether a warning may be said now: with how many that were not since the last one.
    pub(super) fn turn(&self) -> Option<u64> {
        let mut said = self.0.lock();
        let now = Instant::now();
        let passed = said.at.map_or(Duration::ZERO, |at| now - at);
        let regained = u32::try_from(passed.as_secs() / EVERY.as_secs()).unwrap_or(u32::MAX);
        if regained > 0 || said.at.is_none() {
            said.used = said.used.saturating_sub(regained);
            said.at = Some(now);
        }
        if said.used == IN_A_ROW {
            said.unsaid += 1;
            return None;
        }
        said.used += 1;
        Some(std::mem::take(&mut said.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_storm_is_told_of_and_not_repeated() {
        let warnings = Warnings::default();
        let storm = || {
            (0..1_000)
                .filter_map(|_| warnings.turn())
                .collect::<Vec<_>>()
        };
        assert_eq!(storm(), [0; 10]);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(storm(), [990, 0, 0], "with how many were not said");
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(storm().len(), 10);
    }
}

//! When messages came, and how late that was: the same for all contenders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::rig::now_micros;
use super::{EARLY, LOST, P50};
use crate::frame::Sample;

/// When each message came, by its number, in microseconds of the wall clock; 0 if it has not.
pub(super) struct Arrivals {
    seen: Vec<AtomicU64>,
    count: AtomicU64,
}

impl Arrivals {
    pub(super) fn of(count: u64) -> Arc<Self> {
        Arc::new(Self {
            seen: (0..count).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
        })
    }

    /// They came at these moments.
    pub(super) fn at(came: &[u64]) -> Arc<Self> {
        let count = came.iter().filter(|came| **came > 0).count();
        Arc::new(Self {
            seen: came.iter().copied().map(AtomicU64::new).collect(),
            count: AtomicU64::new(count as u64),
        })
    }

    /// One came now, unless it came before.
    pub(super) fn note(&self, number: Option<usize>) {
        let now = now_micros();
        if let Some(at) = number.and_then(|number| self.seen.get(number))
            && at.swap(now, Ordering::Relaxed) == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many came.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// When the first one came.
    pub(super) fn first(&self) -> u64 {
        let seen = self.seen.iter().map(|at| at.load(Ordering::Relaxed));
        seen.filter(|at| *at > 0).min().unwrap_or_default()
    }

    /// Waits for all of them.
    pub(super) async fn all(&self, patience: Duration) -> Result<()> {
        let arriving = async {
            while self.count() < self.seen.len() as u64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let all = tokio::time::timeout(patience, arriving).await;
        all.with_context(|| format!("{} of {} came", self.count(), self.seen.len()))
    }

    /// What 99 of 100 are late by at most, with due times in microseconds.
    pub(super) fn late(&self, due: impl Fn(u64) -> u64) -> Result<Sample> {
        let lateness = self.lateness(due);
        let percentile = |percent: usize| {
            let late = &lateness.late;
            late.get(late.len() * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        let median = u64::try_from(percentile(50).as_micros())?;
        Ok(lateness.counted(Sample::time(percentile(99)).count(P50, median)))
    }

    /// How fast they came that were all due at one moment.
    pub(super) fn burst(&self, due: u64) -> Sample {
        let lateness = self.lateness(|_| due);
        let until_all = lateness.late.last().copied().unwrap_or_default();
        let rate = Sample::rate(lateness.late.len(), until_all);
        lateness.counted(rate)
    }

    fn lateness(&self, due: impl Fn(u64) -> u64) -> Lateness {
        let mut lateness = Lateness::default();
        for (at, number) in self.seen.iter().zip(0..) {
            let due = due(number);
            match at.load(Ordering::Relaxed) {
                0 => lateness.lost += 1,
                at if at < due => lateness.early += 1,
                at => lateness.late.push(Duration::from_micros(at - due)),
            }
        }
        lateness.late.sort_unstable();
        lateness
    }
}

#[derive(Default)]
struct Lateness {
    /// Of those that came in time or later, sorted.
    late: Vec<Duration>,
    early: u64,
    lost: u64,
}

impl Lateness {
    fn counted(&self, sample: Sample) -> Sample {
        sample.count(EARLY, self.early).count(LOST, self.lost)
    }
}

//! How often the task of a shard has crashed, on disk: a process that dies with it remembers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use laneway_delay::Timestamp;

/// So many crashes
const MOST: usize = 3;

/// within this time quarantine a shard.
const WITHIN: Duration = Duration::from_mins(10);

/// The crashes of one shard.
#[derive(Debug)]
pub(crate) struct Crashes {
    path: PathBuf,
}

impl Crashes {
    /// Those that are noted in the directory of a shard.
    pub(crate) fn of(directory: &Path) -> Self {
        Self {
            path: directory.join("crashes"),
        }
    }

    /// Notes one more. Whether the shard is quarantined now.
    pub(crate) fn note(&self, now: Timestamp) -> bool {
        let mut times = self.recent(now);
        times.push(now);
        let lines: Vec<_> = times.iter().map(|at| at.as_millis().to_string()).collect();
        let write = || {
            if let Some(directory) = self.path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            std::fs::write(&self.path, lines.join("\n"))
        };
        if let Err(error) = write() {
            tracing::warn!(path = %self.path.display(), %error, "a crash of a shard cannot be noted");
        }
        times.len() >= MOST
    }

    /// Whether there were too many lately.
    pub(crate) fn is_quarantined(&self, now: Timestamp) -> bool {
        self.recent(now).len() >= MOST
    }

    fn recent(&self, now: Timestamp) -> Vec<Timestamp> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let times = text.lines().filter_map(|line| line.trim().parse().ok());
        let times = times.map(Timestamp::from_millis);
        // What a clock that was set back makes a crash of the future counts, too.
        times.filter(|at| now.since(*at) < WITHIN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_crashes_in_ten_minutes_are_too_many_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shard-3");
        let minute = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        assert!(!Crashes::of(&path).note(minute(0)));
        assert!(!Crashes::of(&path).note(minute(11)));
        assert!(!Crashes::of(&path).note(minute(12)));
        assert!(!Crashes::of(&path).is_quarantined(minute(13)));
        assert!(Crashes::of(&path).note(minute(13)));
        assert!(Crashes::of(&path).is_quarantined(minute(20)));
        assert!(!Crashes::of(&path).is_quarantined(minute(22)));
    }

    #[test]
    fn a_file_that_is_none_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("crashes"), b"x\n\xff\n12").unwrap();
        let crashes = Crashes::of(directory.path());
        assert!(!crashes.is_quarantined(Timestamp::from_millis(0)));
    }
}

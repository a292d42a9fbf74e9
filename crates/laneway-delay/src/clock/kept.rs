//! What is known of the clock, kept beside the messages: a restart must not make a clock believed that was set
//! ahead.
//!
//! It counts only as long as the machine runs: then the counter begins anew, and there is nothing to compare the
//! wall clock with.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::steady::Anchor;
use crate::Timestamp;

const FORMAT: &str = "laneway-clock 1";

/// The file, and which run of the machine it is about.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    boot: String,
}

impl Kept {
    /// In this directory. `None` where it cannot be told whether the machine was started anew.
    pub(super) fn in_directory(directory: &Path) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Self::of(directory, boot.trim()))
    }

    fn of(directory: &Path, boot: &str) -> Self {
        Self {
            path: directory.join("clock"),
            boot: boot.to_owned(),
        }
    }

    /// What was known before, in this run of the machine.
    pub(super) fn read(&self) -> Option<Anchor> {
        let text = fs::read_to_string(&self.path).ok()?;
        let rest = text.trim_end().strip_prefix(FORMAT)?;
        let mut words = rest.split_whitespace();
        if words.next()? != self.boot {
            return None;
        }
        let mut millis = || words.next()?.parse::<u64>().ok();
        let (wall, counter) = (millis()?, millis()?);
        // A file that says since when, but not by how much, was written by an earlier version: the step begins anew.
        let ahead = millis().and_then(|since| Some((since, millis()?)));
        let ahead = ahead.map(|(since, width)| {
            let millis = Duration::from_millis;
            (millis(since), millis(width))
        });
        Some(Anchor {
            wall: Timestamp::from_millis(wall),
            counter: Duration::from_millis(counter),
            ahead,
        })
    }

    /// Keeps it. If that fails, a restart believes the clock as it is.
    pub(super) fn write(&self, anchor: Anchor) {
        if let Err(error) = self.try_write(anchor) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "what is known of the clock cannot be kept");
        }
    }

    fn try_write(&self, anchor: Anchor) -> io::Result<()> {
        let ahead = anchor.ahead.map_or_else(
            || "-".to_owned(),
            |(since, width)| format!("{} {}", since.as_millis(), width.as_millis()),
        );
        let text = format!(
            "{FORMAT} {} {} {} {ahead}\n",
            self.boot,
            anchor.wall.as_millis(),
            anchor.counter.as_millis(),
        );
        let draft = self.path.with_extension("new");
        let mut file = fs::File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&draft, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_of_a_clock_is_what_is_read_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::of(folder.path(), "6f1c0f0e-0c5b-4a52-9d0e-1f1d5f3f5b11");
        let anchor = Anchor {
            wall: Timestamp::from_millis(1_700_000_000_000),
            counter: Duration::from_hours(24),
            ahead: Some((Duration::from_mins(1), Duration::from_hours(1))),
        };
        kept.write(anchor);
        let written = fs::read_to_string(&kept.path).unwrap();
        let text = fixtures::text("clock-1.txt", || written.clone());
        assert_eq!(written, text);
        fs::write(&kept.path, text).unwrap();
        assert_eq!(kept.read(), Some(anchor));
    }

    #[test]
    fn it_reads_back_in_the_same_run_of_the_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::of(folder.path(), "one");
        assert_eq!(kept.read(), None);
        let millis = Duration::from_millis;
        for ahead in [None, Some((millis(7), millis(8)))] {
            let anchor = Anchor {
                wall: Timestamp::from_millis(5),
                counter: millis(6),
                ahead,
            };
            kept.write(anchor);
            assert_eq!(kept.read(), Some(anchor));
            assert_eq!(Kept::of(folder.path(), "two").read(), None);
        }
        let file = folder.path().join("clock");
        fs::write(&file, "laneway-clock 1 one 5 6 7\n").unwrap();
        assert_eq!(kept.read().expect("an earlier version").ahead, None);
        fs::write(&file, "what else").unwrap();
        assert_eq!(kept.read(), None);
    }
}

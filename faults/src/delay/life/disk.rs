//! A disk that fails when it is told to, and knows what a power cut would leave.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, Result};
use laneway_disk::{Disk, Space};
use rand::{Rng, RngExt};

/// Clones are the same disk.
#[derive(Clone, Default)]
pub(super) struct SimDisk {
    /// Syncs fail.
    pub(super) fails: Arc<AtomicBool>,
    /// Nothing can be written: no descriptor is left.
    pub(super) refuses: Arc<AtomicBool>,
    /// There is no room.
    pub(super) is_full: Arc<AtomicBool>,
    /// How long each journal was when it was last synced, and when it was written to before that, by its number in
    /// the file system.
    synced: Arc<Mutex<HashMap<u64, (u64, SystemTime)>>>,
}

const NO_DESCRIPTOR: i32 = 24;

impl Disk for SimDisk {
    fn sync(&self, journal: &File) -> io::Result<()> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("a sync that fails"));
        }
        let metadata = journal.metadata()?;
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        synced.insert(metadata.ino(), (metadata.len(), metadata.modified()?));
        Ok(())
    }

    fn may_write(&self) -> io::Result<()> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(NO_DESCRIPTOR));
        }
        Ok(())
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let total = 1 << 40;
        let free = if self.is_full.load(Ordering::SeqCst) {
            0
        } else {
            total
        };
        Ok(Space { free, total })
    }
}

/// What is left of what was written to a journal and not synced when the power goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail {
    /// Nothing.
    Gone,
    /// So much of it, in parts of 256.
    Torn(u8),
    /// All of it, with something else in the place of a part.
    Garbled(u8, u64),
}

impl Tail {
    pub(super) fn draw(dice: &mut impl Rng) -> Self {
        match dice.random_range(0..4) {
            0 => Self::Torn(dice.random()),
            1 => Self::Garbled(dice.random(), dice.random()),
            _ => Self::Gone,
        }
    }

    /// Leaves this of a journal behind its first bytes, which were synced.
    fn leave(self, file: &mut File, synced: u64) -> io::Result<()> {
        let length = file.metadata()?.len();
        let Some(lost) = length.checked_sub(synced).filter(|lost| *lost > 0) else {
            return Ok(());
        };
        match self {
            Self::Gone => file.set_len(synced),
            Self::Torn(part) => file.set_len(synced + lost * u64::from(part) / 256),
            Self::Garbled(part, noise) => {
                let at = synced + lost * u64::from(part) / 256;
                let count = (length - at).min(1 + noise % 600);
                let garbage: Vec<u8> = (0..count)
                    .map(|number| noise.rotate_left((number % 64) as u32).to_le_bytes()[0])
                    .collect();
                file.seek(io::SeekFrom::Start(at))?;
                file.write_all(&garbage)
            }
        }
    }
}

impl SimDisk {
    /// Copies a directory as it is after a kill, or as a power cut leaves it: what was not synced is gone.
    ///
    /// The engine syncs its journal by itself, without this disk being told, before it writes a table. So a
    /// journal that is older than a table is whole. Both times are those of files: by the clock that tells the time of
    /// day a sync seems to come after a table that was written up to a tick later.
    pub(super) fn copy(&self, from: &Path, to: &Path, tail: Option<Tail>) -> Result<()> {
        let newest = newest_table(from)?;
        self.copy_folder(from, to, tail.map(|tail| (newest, tail)))
    }

    fn copy_folder(&self, from: &Path, to: &Path, cut: Option<(SystemTime, Tail)>) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name();
            let target = to.join(&name);
            // A file of the engine that it removes meanwhile is one that it does not need.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                self.copy_folder(&entry.path(), &target, cut)?;
                continue;
            }
            if fs::copy(entry.path(), &target).is_err() {
                continue;
            }
            let is_journal = target.extension().is_some_and(|end| end == "jnl");
            if let Some((newest, tail)) = cut
                && is_journal
            {
                let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((length, at)) = synced.get(&metadata.ino())
                    && *at > newest
                {
                    let mut file = File::options().write(true).open(&target)?;
                    tail.leave(&mut file, *length)?;
                }
            }
        }
        Ok(())
    }
}

/// When the newest table of the engine was written.
fn newest_table(directory: &Path) -> Result<SystemTime> {
    let mut folders = vec![directory.to_owned()];
    let mut newest = SystemTime::UNIX_EPOCH;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // The engine may remove it meanwhile.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if folder.ends_with("tables") {
                newest = newest.max(metadata.modified()?);
            }
        }
    }
    Ok(newest)
}

/// Flips a bit in the middle of the largest file of rows, if there is any.
pub(super) fn flip(directory: &Path) -> Result<()> {
    let mut folders = vec![directory.join("log").join("keyspaces")];
    let mut largest = None;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let in_tables = folder.ends_with("tables");
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if in_tables {
                largest = largest.max(Some((metadata.len(), entry.path())));
            }
        }
    }
    let Some((length, path)) = largest else {
        return Ok(());
    };
    let mut bytes = fs::read(&path)?;
    let at = usize::try_from(length / 3)?;
    *bytes.get_mut(at).context("it is long enough")? ^= 0x10;
    fs::write(path, bytes)?;
    Ok(())
}

/// Flips any bit of any file in a directory; answers which. What was never written does not count.
pub(super) fn flip_any(directory: &Path, dice: &mut impl Rng) -> Result<Option<(PathBuf, usize)>> {
    let mut folders = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path)?;
            let used = bytes.iter().rposition(|byte| *byte != 0);
            files.extend(used.map(|last| (path, last + 1)));
        }
    }
    files.sort();
    if files.is_empty() {
        return Ok(None);
    }
    let (path, used) = files.swap_remove(dice.random_range(0..files.len()));
    let at = dice.random_range(0..used);
    let mut bytes = fs::read(&path)?;
    bytes[at] ^= 1 << dice.random_range(0..8);
    fs::write(&path, bytes)?;
    Ok(Some((path, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_leaves_a_journal_whole_that_was_synced_just_before_a_table_was_written() {
        let folder = tempfile::tempdir().unwrap();
        // Often enough that both happen within a tick of the clock of the file system.
        for number in 0..100 {
            let log = folder.path().join(number.to_string());
            let tables = log.join("tables");
            fs::create_dir_all(&tables).unwrap();
            let disk = SimDisk::default();
            let mut journal = File::create(log.join("0.jnl")).unwrap();
            journal.write_all(b"synced").unwrap();
            disk.sync(&journal).unwrap();
            journal.write_all(b", and in a table").unwrap();
            fs::write(tables.join("0"), "rows").unwrap();
            let copy = folder.path().join("copy");
            disk.copy(&log, &copy, Some(Tail::Gone)).unwrap();
            let left = fs::read_to_string(copy.join("0.jnl")).unwrap();
            assert_eq!(left, "synced, and in a table");
        }
    }

    #[test]
    fn a_power_cut_takes_what_was_written_after_the_last_sync() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::create_dir_all(log.join("tables")).unwrap();
        let table = log.join("tables").join("0");
        fs::write(&table, "rows").unwrap();
        let written = fs::metadata(&table).unwrap().modified().unwrap();
        let disk = SimDisk::default();
        let mut journal = File::create(log.join("0.jnl")).unwrap();
        // Until it is later by the clock of the file system.
        let mut synced = 0;
        while journal.metadata().unwrap().modified().unwrap() <= written {
            journal.write_all(b"synced").unwrap();
            synced += 6;
        }
        disk.sync(&journal).unwrap();
        journal.write_all(b"lost").unwrap();
        let copy = folder.path().join("copy");
        disk.copy(&log, &copy, Some(Tail::Gone)).unwrap();
        let left = fs::metadata(copy.join("0.jnl")).unwrap().len();
        assert_eq!(left, synced);
    }
}

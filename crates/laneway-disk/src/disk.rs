//! What the store asks of the disk itself. Tests put a failing one in its place.

use std::fs::File;
use std::io;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// The disk below a store.
pub trait Disk: Send + Sync + 'static {
    /// Makes everything durable that was written to a journal.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self, journal: &File) -> io::Result<()> {
        journal.sync_data()
    }

    /// Asked before a commit is written: a disk of a test says no here.
    ///
    /// # Errors
    /// What the system would say.
    fn may_write(&self) -> io::Result<()> {
        Ok(())
    }

    /// How much room there is.
    ///
    /// # Errors
    /// What the system says.
    fn space(&self, directory: &Path) -> io::Result<Space> {
        let figures = rustix::fs::statvfs(directory)?;
        Ok(Space {
            free: figures.f_bavail.saturating_mul(figures.f_frsize),
            total: figures.f_blocks.saturating_mul(figures.f_frsize),
        })
    }
}

/// The disk as it is.
#[derive(Debug)]
pub struct RealDisk;

impl Disk for RealDisk {}

/// Room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What may be used.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

impl Space {
    /// Whether too little is left to take more records. What the engine has in memory must still
    /// find room when it is moved out of the journal.
    #[must_use]
    pub fn is_short(self) -> bool {
        self.free < self.reserve()
    }

    /// Whether a failure of the engine may well come from a lack of room.
    #[must_use]
    pub fn is_tight(self) -> bool {
        self.free < 2 * self.reserve()
    }

    /// Whether there is enough to start the engine with what it has.
    #[must_use]
    pub fn is_some(self) -> bool {
        self.free >= self.reserve() / 2
    }

    fn reserve(self) -> u64 {
        (self.total / 20).clamp(8 * MIB, 128 * MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_is_kept_within_bounds() {
        let short = |free_mib, total_mib| {
            Space {
                free: free_mib * MIB,
                total: total_mib * MIB,
            }
            .is_short()
        };
        assert!(short(7, 20));
        assert!(!short(8, 20));
        assert!(short(19, 400));
        assert!(!short(20, 400));
        assert!(short(127, 1 << 20));
        assert!(!short(128, 1 << 20));
    }
}

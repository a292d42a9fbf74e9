//! Where the benchmarks write: on the disk of this workspace, not in a temporary folder that may be
//! memory.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use laneway::Bus;
use tempfile::TempDir;

use crate::served::Backend;

/// A folder of its own, gone when dropped.
pub(crate) fn folder() -> Result<TempDir> {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    fs::create_dir_all(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let parent = parent.canonicalize()?;
    tempfile::tempdir_in(&parent).with_context(|| format!("cannot write to {}", parent.display()))
}

/// In memory.
pub(super) struct InMemory;

impl Backend for InMemory {
    const PARTITIONS: u32 = 1;

    async fn bus() -> Result<Bus> {
        Ok(Bus::open("memory:").await?)
    }
}

/// On the disk, in a folder that is gone when the next one begins.
pub(super) struct OnDisk;

impl Backend for OnDisk {
    const PARTITIONS: u32 = 1;

    async fn bus() -> Result<Bus> {
        static LAST: Mutex<Option<TempDir>> = Mutex::new(None);
        let folder = folder()?;
        let address = format!("file:{}", folder.path().display());
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
        Ok(Bus::open(&address).await?)
    }
}

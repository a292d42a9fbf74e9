//! Where the benchmarks write: on the disk of this workspace, not in a temporary folder that may be
//! memory.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A folder of its own, gone when dropped.
pub(crate) fn folder() -> Result<TempDir> {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    fs::create_dir_all(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let parent = parent.canonicalize()?;
    tempfile::tempdir_in(&parent).with_context(|| format!("cannot write to {}", parent.display()))
}

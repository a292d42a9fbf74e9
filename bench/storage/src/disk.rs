//! What a process and a directory take.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;

/// Bytes on disk under a directory: blocks, not lengths, as logs may be sparse.
pub(crate) fn used(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            used(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}

/// The resident memory of this process now, and at its highest, in MiB.
pub(crate) fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0)
            / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

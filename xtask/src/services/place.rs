//! Where everything of ours lies: below the workspace's target folder, and nowhere else.

use std::path::{Path, PathBuf};

use crate::workspace;

/// State file, lock, data and logs of the running servers.
pub(crate) fn services() -> PathBuf {
    // Not below CARGO_TARGET_DIR: whoever builds elsewhere still shares the servers and downloads.
    workspace::root().join("target").join("services")
}

/// One log file per node; kept after the server stopped, replaced by the next start.
pub(crate) fn logs() -> PathBuf {
    services().join("logs")
}

/// What the servers store; removed when they stop.
pub(crate) fn data() -> PathBuf {
    services().join("data")
}

/// Downloaded programs, kept so that the second start takes seconds.
pub(crate) fn tools() -> PathBuf {
    workspace::root().join("target").join("tools")
}

/// Temporary files of installers and JVMs, which would otherwise go to the system's folder.
pub(crate) fn scratch() -> PathBuf {
    tools().join("tmp")
}

/// A path as people want to read it: from the workspace root on.
pub(crate) fn shown(path: &Path) -> std::path::Display<'_> {
    path.strip_prefix(workspace::root())
        .unwrap_or(path)
        .display()
}

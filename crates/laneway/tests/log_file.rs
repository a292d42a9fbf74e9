//! Logs on disk do what every log must.

mod log;

use tempfile::TempDir;

use log::Fixture;

/// A directory of its own.
struct File(TempDir);

impl Fixture for File {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn address(&self) -> String {
        format!("file:{}", self.0.path().join("bus").display())
    }
}

log::of_every_log!(File);

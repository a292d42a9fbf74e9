//! The broker on disk does what every broker must, and keeps it across a restart.

mod conformance;

use laneway::{Bus, BusBuilder, Error};

use conformance::Fixture;

struct File(tempfile::TempDir);

impl Fixture for File {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        let url = format!("file:{}", self.0.path().display());
        builder.open(&url).await
    }
}

conformance::conformance!(File);
conformance::conformance_across_reopening!(File);

//! The broker on disk does what every broker must, and goes on where it was when it is opened again.

mod conformance;

use laneway::{Bus, BusBuilder, Error};
use tempfile::TempDir;

use conformance::Fixture;

struct File(TempDir);

impl Fixture for File {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        let directory = self.0.path().join("bus");
        builder.open(&format!("file:{}", directory.display())).await
    }
}

conformance::conformance!(File);
conformance::conformance_across_reopening!(File);
conformance::conformance_of_forgetting!(File);

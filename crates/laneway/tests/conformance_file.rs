//! The broker on disk does what every broker must, and goes on where it was when it is opened again: with the sizes
//! that it has in services, and with sizes so tiny that segments end, tables are written and queues fill all the
//! time.

mod conformance;

use laneway::breaking::FileLimits;
use laneway::{Bus, BusBuilder, Error};
use tempfile::TempDir;

use conformance::Fixture;

/// A directory of its own.
struct File<const IS_TINY: bool>(TempDir);

impl<const IS_TINY: bool> Fixture for File<IS_TINY> {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        let directory = self.0.path().join("bus");
        let builder = if IS_TINY {
            builder.file_limits(FileLimits::tiny())
        } else {
            builder
        };
        builder.open(&format!("file:{}", directory.display())).await
    }

    fn largest(&self) -> usize {
        // More than the writer puts into one batch; with tiny sizes also more than its queue has room for.
        if IS_TINY { 1 << 20 } else { 12 << 20 }
    }
}

type Usual = File<false>;
type Tiny = File<true>;

mod with_usual_sizes {
    crate::conformance::conformance!(Usual);
    crate::conformance::conformance_across_reopening!(Usual);
    crate::conformance::conformance_of_forgetting!(Usual);
}

mod with_tiny_sizes {
    crate::conformance::conformance!(Tiny);
    crate::conformance::conformance_across_reopening!(Tiny);
    crate::conformance::conformance_of_forgetting!(Tiny);
}

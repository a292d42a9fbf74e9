//! The broker in memory does what every broker must.

mod conformance;

use laneway::{Bus, BusBuilder, Error};

use conformance::Fixture;

struct Memory;

impl Fixture for Memory {
    fn new() -> Self {
        Self
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        builder.open("memory:").await
    }

    fn largest(&self) -> usize {
        12 << 20
    }
}

conformance::conformance!(Memory);

//! The broker on Kafka does what every broker must, and goes on where it was when it is opened again.

mod conformance;

use std::sync::atomic::{AtomicU32, Ordering};

use laneway::{Bus, BusBuilder, Error};

use conformance::Fixture;

/// A namespace of its own on the cluster.
struct Kafka(String);

impl Fixture for Kafka {
    fn missing() -> Option<String> {
        needs::address("kafka").err()
    }

    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let address = needs::address("kafka").expect("it is not missing");
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(format!("kafka://{address}?namespace=c{process}-{count}"))
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        builder.open(&self.0).await
    }
}

conformance::conformance!(Kafka);
conformance::conformance_across_reopening!(Kafka);

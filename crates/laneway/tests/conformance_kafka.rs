//! The broker on Kafka does what every broker must, and goes on where it was when it is opened again: with
//! all of a topic on one partition, and with eight.

mod conformance;

use std::sync::atomic::{AtomicU32, Ordering};

use laneway::{Bus, BusBuilder, Error};

use conformance::Fixture;

/// A namespace of its own on the cluster, with topics of so many partitions.
struct Kafka<const PARTITIONS: u32>(String);

impl<const PARTITIONS: u32> Fixture for Kafka<PARTITIONS> {
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

    fn partitions(&self, _: u32) -> u32 {
        PARTITIONS
    }
}

type One = Kafka<1>;
type Eight = Kafka<8>;

mod on_one_partition {
    crate::conformance::conformance!(One);
    crate::conformance::conformance_across_reopening!(One);
}

mod on_eight_partitions {
    crate::conformance::conformance!(Eight);
    crate::conformance::conformance_across_reopening!(Eight);
}

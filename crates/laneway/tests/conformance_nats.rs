//! The broker on NATS does what every broker must, and goes on where it was when it is opened again.

mod conformance;

use std::sync::atomic::{AtomicU32, Ordering};

use laneway::{Bus, BusBuilder, Error};

use conformance::Fixture;

/// A namespace of its own on the server.
struct Nats(String);

impl Fixture for Nats {
    fn missing() -> Option<String> {
        needs::address("nats").err()
    }

    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let address = needs::address("nats").expect("it is not missing");
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Events that are published twice on purpose must get there twice, and nobody waits long for
        // members that crashed.
        let settings = format!("namespace=c{process}_{count}&duplicates_ms=0&session_ms=500");
        Self(format!("{address}?{settings}"))
    }

    async fn open(&self, builder: BusBuilder) -> Result<Bus, Error> {
        builder.open(&self.0).await
    }
}

conformance::conformance!(Nats);
conformance::conformance_across_reopening!(Nats);

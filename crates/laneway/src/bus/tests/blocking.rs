//! A handler that blocks its thread, on a runtime with threads to spare.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use waiting::wait_for_blocking;

use super::{event, one_partition};
use crate::{Event, testing};

const OTHERS: usize = 1000;

/// Releases the handler also when the test fails: the runtime waits for it.
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_does_not_stop_reading() {
    let bus = testing::bus().await;
    one_partition(&bus).await;
    let keys = (0..OTHERS).map(|number| format!("key-{number}"));
    let keys = std::iter::once("blocker".to_owned()).chain(keys);
    let events: Vec<_> = keys.map(|key| event(&key)).collect();
    bus.publish_envelope_batch("orders", &events).await.unwrap();

    let release = Release(Arc::default());
    let (released, handled) = (release.0.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = handled.clone();
    bus.subscribe_envelope("orders", move |event: Event| {
        let (released, counted) = (released.clone(), counted.clone());
        async move {
            if event.aggregate_id().as_str() == "blocker" {
                while !released.load(Ordering::SeqCst) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            } else {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }
    })
    .await
    .unwrap();
    wait_for_blocking!(handled.load(Ordering::SeqCst) == OTHERS);
}

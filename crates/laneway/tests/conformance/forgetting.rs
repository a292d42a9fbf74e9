//! What a broker inside the process forgets with it. A server remembers it.

use laneway::Exhausted;
use laneway::topic::{Storage, Topic};

use super::Fixture;
use super::support::{Log, SOON, attempts, fail_if, publish, settled};

pub(crate) async fn messages_in_memory_are_gone<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let kept = Topic::plain("kept").storage(Storage::File).build();
    let kept = kept.expect("a valid topic");
    bus.declare(&kept).await.expect("declared");
    for topic in ["news", "kept"] {
        bus.publish(topic, "7").await.expect("published");
    }
    bus.close(SOON).await.expect("closed");
    let bus = at.bus().await;
    let log = Log::default();
    for topic in ["news", "kept"] {
        let described = bus.describe(topic).await.expect("an answer");
        assert!(described.is_some(), "the topic is not");
        let seen = log.clone();
        bus.subscribe(topic, move |message| {
            let topic = message.context().topic().as_str().to_owned();
            seen.push(&topic, 0);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    }
    bus.publish("news", "8").await.expect("published");
    settled(&bus).await;
    assert_eq!(log.of("news"), [0], "the one that was published now");
    assert_eq!(log.of("kept"), [0], "as it was declared");
}

/// Letters are kept, and the events that they are about are not: the next ones have the same offsets.
pub(crate) async fn a_parked_key_loses_nothing_when_its_topic_in_memory_begins_anew<F: Fixture>(
    at: &F,
) {
    let log = Log::default();
    for fails in [true, false] {
        let bus = at.bus().await;
        let topic = Topic::domain("orders")
            .partitions(1)
            .storage(Storage::Memory);
        let topic = topic.build().expect("a valid topic");
        bus.declare(&topic).await.expect("declared");
        let seen = log.clone();
        let subscribing = bus
            .subscription("orders")
            .retry(attempts(1))
            .on_exhausted(Exhausted::ParkKey)
            .envelope(move |event| {
                if !fails {
                    seen.note(&event);
                }
                async move { fail_if(fails, "not yet") }
            });
        subscribing.await.expect("subscribed");
        let first = if fails { 0 } else { 3 };
        publish(&bus, "orders", "a", first..first + 3).await;
        settled(&bus).await;
        let parked = bus.parked("orders").await.expect("there");
        let letters = parked.list(usize::MAX).await.expect("a list");
        if !fails {
            parked.release("default", "a").await.expect("asked for");
            settled(&bus).await;
        }
        let expected = if fails { 3 } else { 6 };
        assert_eq!(letters.len(), expected, "all of them were parked");
        bus.close(SOON).await.expect("closed");
    }
    assert_eq!(log.of("a"), (0..6).collect::<Vec<_>>());
}

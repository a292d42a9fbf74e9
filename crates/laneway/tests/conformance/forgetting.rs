//! What a broker inside the process forgets with it. A server remembers it.

use laneway::topic::{Storage, Topic};

use super::Fixture;
use super::support::{Log, SOON, settled};

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

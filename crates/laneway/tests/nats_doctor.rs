//! The doctor on a real server.

use laneway::doctor::{Checkup, Finding, State, examine};
use laneway::topic::{Storage, Topic};
use laneway::{Bus, Error};

fn of<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.about == about);
    found.unwrap_or_else(|| panic!("nothing about {about} in {findings:#?}"))
}

#[tokio::test]
async fn a_server_is_examined_and_nothing_is_left_behind() {
    let server = needs::service!("nats");
    let address = format!("{server}?namespace=examined{}", std::process::id());
    let before = examine(&address, &Checkup::default()).await.unwrap();
    for about in ["version", "JetStream", "replicas", "clock"] {
        assert_eq!(of(&before, about).state, State::Fine, "{about}");
    }
    let synced = of(&before, "sync before ack");
    assert_eq!(synced.state, State::Unknown, "a server does not tell");
    assert!(synced.change.as_ref().unwrap().contains("--monitor"));

    let bus = Bus::open(&address).await.unwrap();
    let risky = Topic::domain("risky").storage(Storage::Memory);
    let declared = bus.declare(&risky.build().unwrap()).await;
    if declared.is_ok() {
        let after = examine(&address, &Checkup::default()).await.unwrap();
        assert_eq!(of(&after, "topics").state, State::Bad);
        assert!(of(&after, "topics").what.contains("risky"));
        bus.delete("risky").await.unwrap();
    }
    let again = examine(&address, &Checkup::default()).await.unwrap();
    assert!(!format!("{again:?}").contains("doctor_"), "{again:?}");
}

#[tokio::test]
async fn a_topic_that_others_have_a_stream_for_is_told() {
    let server = needs::service!("nats");
    let address = format!("{server}?namespace=clash{}", std::process::id());
    let bus = Bus::open(&address).await.unwrap();
    let early = format!("doctor{}.early", std::process::id());
    let topic = Topic::domain(&early).partitions(1).build().unwrap();
    bus.declare(&topic).await.unwrap();
    let before = examine(&address, &Checkup::default()).await.unwrap();
    assert!(
        before
            .iter()
            .all(|finding| finding.about != "streams of others")
    );
    let context = async_nats::jetstream::new(async_nats::connect(&server).await.unwrap());
    let name = format!("THEIRS{}", std::process::id());
    let theirs = async_nats::jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![early.replace("early", ">")],
        ..Default::default()
    };
    context.create_stream(theirs).await.unwrap();
    let after = examine(&address, &Checkup::default()).await.unwrap();
    context.delete_stream(&name).await.unwrap();
    bus.delete(&early).await.unwrap();
    let clash = of(&after, "streams of others");
    assert_eq!(clash.state, State::Doubtful);
    assert!(
        clash.what.contains(&early) && clash.what.contains(&name),
        "{clash:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_examined_is_told() {
    let _ = needs::service!("nats");
    let nobody = examine("nats://127.0.0.1:1", &Checkup::default()).await;
    assert!(matches!(nobody, Err(Error::Broker(_))), "{nobody:?}");
    let other = examine("memory:", &Checkup::default()).await;
    assert!(matches!(other, Err(Error::NoServer { .. })), "{other:?}");
}

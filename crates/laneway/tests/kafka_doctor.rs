//! The doctor on a real cluster.

use laneway::doctor::{Checkup, Finding, State, examine};
use laneway::{Bus, Error};

fn of<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.about == about);
    found.unwrap_or_else(|| panic!("nothing about {about} in {findings:#?}"))
}

#[tokio::test]
async fn a_cluster_is_examined_and_nothing_is_left_behind() {
    let servers = needs::service!("kafka");
    let address = format!("kafka://{servers}?namespace=doctor{}", std::process::id());
    let before = examine(&address, &Checkup::default()).await.unwrap();
    for about in ["version", "unclean election", "commit metadata", "session"] {
        assert_eq!(of(&before, about).state, State::Fine, "{about}");
    }
    let auto = of(&before, "auto-create");
    assert_eq!(auto.state, State::Doubtful, "by default it is on");
    assert!(auto.change.as_ref().unwrap().contains("auto.create"));
    assert!(of(&before, "topics").what.starts_with('0'), "none was made");
    let bus = Bus::open(&address).await.unwrap();
    bus.publish("news", "hello").await.unwrap();
    let after = examine(&address, &Checkup::default()).await.unwrap();
    assert!(
        of(&after, "topics").what.starts_with('2'),
        "and the catalog"
    );
}

#[tokio::test]
async fn what_cannot_be_examined_is_told() {
    let nobody = examine("kafka://127.0.0.1:1", &Checkup::default()).await;
    assert!(matches!(nobody, Err(Error::Broker(_))), "{nobody:?}");
    let wrong = examine("kafka://", &Checkup::default()).await;
    assert!(matches!(wrong, Err(Error::Broker(_))), "{wrong:?}");
}

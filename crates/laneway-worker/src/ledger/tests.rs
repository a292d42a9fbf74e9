use super::*;

const FROM: PeerId = 1;

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Bounds {
        instance: Instance([1; 16]),
        credit: 64,
        held_bytes: 1 << 20,
        start_within: Duration::from_secs(3),
        offer_every: Duration::from_secs(5),
        serves_callbacks: true,
        serves_bus: true,
    });
    assert_eq!(ledger.open_peer(Arc::default()), FROM);
    ledger
}

fn take(ledger: &mut Ledger, id: &str, not_before: u64, now: u64) -> Scheduled {
    let callback = proto::Callback {
        url: "http://a.example/".to_owned(),
        method: "POST".to_owned(),
        ..proto::Callback::default()
    };
    let go = proto::Go {
        id: id.to_owned(),
        attempt: 1,
        not_before_ms: not_before,
        content: Some(proto::Content {
            target: Some(proto::content::Target::Callback(callback)),
            payload: "12345".into(),
            ..proto::Content::default()
        }),
        ..proto::Go::default()
    };
    match ledger.take(FROM, go, at(now), ms(0)) {
        Taken::Held(scheduled) => scheduled,
        Taken::No => panic!("it is taken"),
    }
}

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn start_is_counted_from_the_moment_or_from_the_go_whichever_is_later() {
    let mut ledger = ledger();
    for (id, not_before, deadline) in [("ahead", 1_050, 3_050), ("late", 10, 3_000)] {
        let held = take(&mut ledger, id, not_before, 1_000);
        let claims = ledger.claim(&[held], at(2_000), ms(deadline));
        assert_eq!(claims.len(), 1);
        // The process stands still between the claim and the start.
        assert!(!ledger.begin(held.due_key.serial, ms(deadline + 1)));
    }
    assert_eq!(ledger.open(), (0, 2));
}

#[test]
fn a_claim_is_not_a_start() {
    let mut ledger = ledger();
    let held = take(&mut ledger, "a", 0, 0);
    let serial = held.due_key.serial;
    assert!(!ledger.begin(serial, ms(0)), "the engine does not have it");
    assert_eq!(ledger.claim(&[held], at(0), ms(0)).len(), 1);
    assert!(ledger.claim(&[held], at(0), ms(0)).is_empty());
    assert_eq!((ledger.held(), ledger.open()), (1, (0, 0)));
    let asked = Asked {
        shard: 0,
        epoch: 1,
        id: MessageId::new("a").unwrap(),
        attempt: 1,
    };
    ledger.ask(FROM, asked, ms(0));
    assert!(!ledger.begin(serial, ms(0)), "it was disclaimed");
    assert_eq!((ledger.held(), ledger.bytes), (0, 0));
}

#[test]
fn an_attempt_ends_once() {
    let mut ledger = ledger();
    let held = take(&mut ledger, "a", 0, 0);
    let serial = held.due_key.serial;
    let claims = ledger.claim(&[held], at(0), ms(0));
    assert_eq!(claims[0].message.record.attempts(), 1);
    assert!(ledger.begin(serial, ms(0)));
    assert!(!ledger.begin(serial, ms(0)));
    assert_eq!(ledger.bytes, 5);
    ledger.end(serial, Outcome::Delivered.into(), ms(1));
    ledger.end(serial, handed_back(ms(0)), ms(1));
    let id = MessageId::new("a").unwrap();
    let status = ledger.shard(0).ask(1, &id, 1);
    assert_eq!(status, Status::Ended(Outcome::Delivered));
    assert_eq!((ledger.open(), ledger.bytes), ((0, 1), 0));
    ledger.logged(0, id, 1, ms(2));
    assert_eq!(ledger.open(), (0, 0));
    assert!(ledger.entries.is_empty() && ledger.serials.is_empty());
}

#[test]
fn what_waits_for_a_destination_that_rests_is_handed_back_for_that_long() {
    let mut ledger = ledger();
    let first = take(&mut ledger, "a", 0, 0);
    take(&mut ledger, "b", 0, 0);
    ledger.claim(&[first], at(0), ms(0));
    assert!(ledger.begin(first.due_key.serial, ms(0)));
    ledger.rest(first.due_key.serial, ms(10_000), ms(100));
    ledger.end(first.due_key.serial, handed_back(ms(10_000)), ms(100));
    ledger.sweep(ms(3_001));
    let entry = ledger
        .entries
        .values()
        .find(|entry| entry.key.1.as_str() == "b");
    let ending = entry.and_then(|entry| entry.ending.clone());
    assert_eq!(ending, Some(handed_back(ms(7_099))));
    assert_eq!((ledger.held(), ledger.due_keys.len()), (0, 0));
}

#[test]
fn a_center_that_asks_and_does_not_read_loses_its_connection() {
    let mut ledger = ledger();
    for _ in 0..70_000 {
        ledger.pong(FROM, proto::Pong::default());
    }
    assert!(ledger.frames(FROM, 10).is_none());
}

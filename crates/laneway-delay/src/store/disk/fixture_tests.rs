//! Stores that earlier builds have left: they are opened, and have what was stored.

use super::outcome_tests::{assert_refused, at, claim_all, get, id, is_in_doubt};
use super::tests::{draft, end, settle, submit, withdraw};
use super::*;
use crate::store::Operation;
use crate::{DeathCause, HistoryEvent, Method, Schedule, State, StateName, Target, Undelivered};

/// A directory as this version leaves it: one message that waits, one that is withdrawn, and an idempotency key.
fn made() -> String {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = DiskStore::open(folder.path()).await.unwrap();
        let mut waits = draft("waits");
        waits.submission = waits.submission.payload("later");
        waits.submission.idempotency_key = Some("once".to_owned());
        store.submit(vec![waits]).await.remove(0).unwrap();
        submit(&store, "gone").await.unwrap();
        withdraw(&store, "gone").await.unwrap();
        store.close().await.unwrap();
    });
    let leave_out = |name: &str| name == "lock";
    fixtures::pack(folder.path(), leave_out).unwrap()
}

#[tokio::test]
async fn the_fixture_of_a_store_opens_and_has_what_was_stored() {
    let making = || std::thread::spawn(made).join().unwrap();
    let text = fixtures::text("delay-store-2.txt", making);
    let folder = tempfile::tempdir().unwrap();
    fixtures::unpack(&text, folder.path()).unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    let waits = get(&store, "waits").await;
    assert_eq!(waits.payload, "later");
    assert_eq!(waits.topic, "t");
    assert_eq!(waits.record.due(), at(10));
    assert_eq!(
        StateName::from(get(&store, "gone").await.record.state()),
        StateName::Withdrawn
    );
    let scanned = store.scan(DueKey::FIRST, end(), 10).await.unwrap();
    assert_eq!(scanned.len(), 1);
    let counts = store.counts()["t"];
    assert_eq!((counts.scheduled, counts.withdrawn), (1, 1));
    // The key is known.
    let mut again = draft("waits");
    again.submission = again.submission.payload("later");
    again.submission.idempotency_key = Some("once".to_owned());
    let again = store.submit(vec![again]).await.remove(0).unwrap();
    assert!(!again.is_new);
    submit(&store, "new").await.unwrap();
    store.close().await.unwrap();
}

/// Due at this moment.
fn draft_at(id: &str, due: u64) -> Draft {
    let mut draft = draft(id);
    draft.due = at(due);
    draft
}

async fn change(store: &DiskStore, name: &str, what: Operation) -> Message {
    let change = Change {
        id: id(name),
        now: at(12),
        what,
    };
    store.change(vec![change]).await.remove(0).unwrap()
}

/// The first process: every state, both targets, and all that can be said of a message. It ends while `sent` is on its way.
async fn leave_every_state(store: &Arc<DiskStore>) {
    const HOUR: Duration = Duration::from_hours(1);
    let waits = || Schedule::new(vec![HOUR]);
    let unknown = || Outcome::Failed(Undelivered::unknown("no answer"), waits());
    let permanent = || Outcome::Failed(Undelivered::permanent("410"), waits());
    let outcomes = [
        ("delivered", Outcome::Delivered),
        ("dead", permanent()),
        ("replayed", permanent()),
        ("unknown", unknown()),
        ("stopped", unknown()),
    ];
    for (name, outcome) in outcomes {
        submit(store, name).await.unwrap();
        let claim = claim_all(store, at(10)).await.remove(0);
        settle(store, claim, outcome).await.unwrap().unwrap();
    }
    change(store, "stopped", Operation::Stop).await;
    change(store, "replayed", Operation::Replay).await;
    // The new one is due at once.
    let claim = claim_all(store, at(12)).await.remove(0);
    let postponed = Undelivered::new(crate::Failure::Postponed(HOUR), "the circuit is open");
    let postponed = Outcome::Failed(postponed, waits());
    settle(store, claim, postponed).await.unwrap().unwrap();

    let mut bus = draft_at("bus", 7_200_000);
    bus.submission.target = Target::bus("orders", "o-1", "OrderExpired");
    bus.submission = bus
        .submission
        .payload("{}")
        .content_type("application/json");
    let metadata = ("tenant".to_owned(), "a".to_owned());
    bus.submission.metadata.extend([metadata]);
    store.submit(vec![bus]).await.remove(0).unwrap();
    change(store, "bus", Operation::Extend(crate::Extend::By(HOUR))).await;

    let mut sent = draft_at("sent", 20_000);
    if let Target::Callback(callback) = &mut sent.submission.target {
        callback.method = Method::Put;
        callback.headers.push(("x-a".to_owned(), "b".to_owned()));
        callback.timeout = Some(Duration::from_secs(3));
    }
    sent.submission = sent.submission.retry(waits());
    store.submit(vec![sent]).await.remove(0).unwrap();
    assert_eq!(claim_all(store, at(20_000)).await.len(), 1);
}

/// A directory that three processes have left. The second one finds `sent` claimed, and leaves the row of doubt; the
/// third one leaves `again` claimed.
fn made_with_every_state() -> String {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let open = async || Arc::new(DiskStore::open(folder.path()).await.unwrap());
        let store = open().await;
        leave_every_state(&store).await;
        store.close().await.unwrap();
        drop(store);
        let store = open().await;
        store.close().await.unwrap();
        drop(store);
        let store = open().await;
        submit(&store, "again").await.unwrap();
        assert_eq!(claim_all(&store, at(10)).await.len(), 1);
        store.close().await.unwrap();
    });
    fixtures::pack(folder.path(), |name| name == "lock").unwrap()
}

#[tokio::test]
async fn the_fixture_of_a_store_with_every_state_opens_and_has_what_was_stored() {
    let making = || std::thread::spawn(made_with_every_state).join().unwrap();
    let text = fixtures::text("delay-store-2-states.txt", making);
    let folder = tempfile::tempdir().unwrap();
    fixtures::unpack(&text, folder.path()).unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();

    let delivered = get(&store, "delivered").await;
    assert_eq!(delivered.record.state(), State::Delivered { at: at(11) });
    let by = HistoryEvent::Delivered { attempt: 1 };
    assert_eq!(delivered.history[0].what, by);
    let dead = get(&store, "dead").await.record;
    let cause = DeathCause::Rejected;
    assert_eq!(dead.state(), State::Dead { at: at(11), cause });
    let unknown = get(&store, "unknown").await.record;
    let next = at(11 + 3_600_000);
    assert_eq!(unknown.state(), State::Scheduled { at: next });
    assert_eq!((unknown.failures(), unknown.is_in_doubt()), (1, true));
    let stopped = get(&store, "stopped").await.record;
    assert_eq!(stopped.state(), State::Withdrawn { at: at(12) });
    assert!(stopped.is_in_doubt());

    let scheduled = store.list(&Query::new(StateName::Scheduled)).await.unwrap();
    let replayed = scheduled.messages.iter().find(|message| {
        let first = message.history.first().map(|event| &event.what);
        first == Some(&HistoryEvent::Replayed { of: id("replayed") })
    });
    let what = &replayed.unwrap().history[1].what;
    assert!(matches!(what, HistoryEvent::Postponed { .. }), "{what:?}");

    let bus = get(&store, "bus").await;
    assert_eq!(bus.target, Target::bus("orders", "o-1", "OrderExpired"));
    assert_eq!(bus.content_type.as_deref(), Some("application/json"));
    assert_eq!(bus.metadata["tenant"], "a");
    assert_eq!(bus.record.due(), at(10_800_000));
    let sent = get(&store, "sent").await;
    let Target::Callback(callback) = &sent.target else {
        panic!("{:?}", sent.target);
    };
    assert_eq!(callback.method, Method::Put);
    assert_eq!(callback.headers, [("x-a".to_owned(), "b".to_owned())]);
    assert_eq!(callback.timeout, Some(Duration::from_secs(3)));
    assert_eq!(
        sent.retry,
        Some(Schedule::new(vec![Duration::from_hours(1)]))
    );

    // `sent` is in doubt because of the row `\0doubt`, `again` because of `\0claimed`: neither row covers the other one.
    for name in ["sent", "again"] {
        assert_refused(withdraw(&store, name).await, is_in_doubt);
    }
    withdraw(&store, "bus").await.unwrap();
    let counts = store.counts()["t"];
    let ended = (counts.delivered, counts.dead, counts.withdrawn);
    assert_eq!((counts.scheduled, ended), (4, (1, 1, 2)));
    store.close().await.unwrap();
}

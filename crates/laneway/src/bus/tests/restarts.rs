//! Tasks of ours that panic. Time is virtual.

use waiting::wait_for;

use super::*;
use crate::lanes;

/// The tasks that were started again, as events tell of them, and the longest pause.
async fn restarts(events: &mut lanes::Events, pause: Duration) -> Vec<String> {
    let mut tasks = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(pause, events.next()).await {
        if let lanes::Event::TaskRestarted { task, .. } = event {
            tasks.push(task);
        }
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_panics_is_seen_and_started_again() {
    let (bus, broker) = bus().await;
    let two = Topic::domain("orders").partitions(2).build().unwrap();
    bus.declare(&two).await.unwrap();
    let mut events = bus.lanes().events();
    let orders = subscribe(&bus).await;
    broker.begin(Trouble::ReadPanics);
    for key in 0..20 {
        publish(&bus, &format!("key-{key}")).await;
    }
    let failing = async || match orders.state() {
        State::Failing(reason) => {
            reason.contains("partition 0") && reason.contains("reading breaks")
        }
        _ => false,
    };
    wait_for!(failing().await, "failing");
    assert!(!bus.health().await.is_well());
    let handled = async || orders.stats().handled;
    wait_for!(handled().await > 0, "the other partition goes on");
    sleep(Duration::from_mins(1)).await;
    assert!(failing().await, "it stays so for as long as it panics");
    assert!(handled().await < 20);
    let told = restarts(&mut events, Duration::from_millis(1)).await;
    assert!(
        (5..=9).contains(&told.len()),
        "with growing pauses: {told:?}"
    );
    broker.end(Trouble::ReadPanics);
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .unwrap();
    assert_eq!(handled().await, 20, "each once, none is missed");
    wait_for!(bus.health().await.is_well(), "well");
}

/// What the reader had in its hands, and what was in the lanes, comes again in order.
#[tokio::test(start_paused = true)]
async fn nothing_is_missed_and_nothing_overtakes_when_a_reader_panics() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let handled = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = handled.clone();
    let subscription = bus.subscription("orders").lane_bound(5);
    subscription
        .envelope(move |event| {
            let seen = seen.clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                seen.lock().unwrap().push(event.event_version());
                Ok(())
            }
        })
        .await
        .unwrap();
    for version in 1..=100 {
        let event = Envelope::builder("a", "Happened").event_version(version);
        let event = event.json(&json!(1)).unwrap();
        bus.publish_envelope("orders", &event).await.unwrap();
        if version == 50 {
            wait_for!({ handled.lock().unwrap().len() > 5 }, "some are handled");
            broker.begin(Trouble::ReadPanics);
        }
        if version == 60 {
            sleep(Duration::from_millis(100)).await;
            broker.end(Trouble::ReadPanics);
        }
    }
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .unwrap();
    let handled = handled.lock().unwrap().clone();
    let mut firsts = Vec::new();
    for (place, version) in handled.iter().enumerate() {
        if !handled[..place].contains(version) {
            firsts.push(*version);
        }
    }
    assert_eq!(firsts, (1..=100).collect::<Vec<_>>());
    let back = handled.windows(2).filter(|pair| pair[1] <= pair[0]);
    assert!(back.count() <= 1, "it begins anew once: {handled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_committer_that_panics_is_seen_and_started_again() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let mut events = bus.lanes().events();
    let orders = subscribe(&bus).await;
    broker.begin(Trouble::CommitPanics);
    publish(&bus, "a").await;
    let failing = async || matches!(orders.state(), State::Failing(_));
    wait_for!(failing().await, "failing");
    sleep(Duration::from_secs(3)).await;
    assert!(failing().await);
    broker.end(Trouble::CommitPanics);
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .unwrap();
    assert_eq!(orders.stats().handled, 1);
    wait_for!(bus.health().await.is_well(), "well");
    let told = restarts(&mut events, Duration::from_millis(1)).await;
    assert!(told.iter().all(|task| task == "the committer"), "{told:?}");
    assert!(!told.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_breaks_joins_again() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    let orders = subscribe(&bus).await;
    publish(&bus, "a").await;
    testing::settled(&bus).await.unwrap();
    broker.begin(Trouble::MemberPanics);
    // So that the keeper asks for what comes next.
    broker.begin(Trouble::ReadPanics);
    publish(&bus, "a").await;
    let failing = async || matches!(orders.state(), State::Failing(_));
    wait_for!(failing().await, "failing");
    broker.end(Trouble::ReadPanics);
    wait_for!(broker.members_gone() > 0, "the member is given up");
    broker.end(Trouble::MemberPanics);
    testing::settled_within(&bus, Duration::from_mins(2))
        .await
        .unwrap();
    assert_eq!(orders.stats().handled, 2);
    wait_for!(bus.health().await.is_well(), "well");
    orders.close(Duration::from_secs(1)).await;
}

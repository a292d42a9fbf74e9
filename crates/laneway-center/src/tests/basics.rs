//! What a cluster does when nothing fails.

use std::time::Duration;

use laneway_cluster::owner::Order;
use laneway_cluster::record::RequestDigest;
use laneway_rpc::CenterCalls;
use laneway_rpc::proto::{self, Refusal, State, reply, request};
use waiting::wait_for;

use super::receiver::Say;
use super::world::{World, id, now, soon, submit};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_submitted_fires_once_and_not_early() {
    let world = World::started(4, &["w1", "w2"]).await;
    // Both have room for attempts.
    let mut warm = 0;
    wait_for!({
        world
            .submit(submit(&format!("warm{warm}"), soon(0), &[]))
            .await;
        warm += 1;
        let came = world.receiver.came();
        ["w1", "w2"]
            .iter()
            .all(|name| came.iter().any(|came| came.worker == *name))
    });
    wait_for!(world.receiver.count() == warm);
    for number in 0..100 {
        let due = soon(100 + number * 5);
        world.submit(submit(&format!("m{number}"), due, &[])).await;
    }
    wait_for!(world.receiver.count() == warm + 100);
    for came in world.receiver.came() {
        assert!(came.at >= came.due, "{came:?}");
        assert_eq!(came.attempt, 1);
    }
    for number in 0..100 {
        let text = format!("m{number}");
        assert_eq!(world.receiver.of(&text).len(), 1);
        world.reaches(&text, State::Delivered).await;
    }
    let workers = world.receiver.came().into_iter().skip(warm);
    let first = workers.filter(|came| came.worker == "w1").count();
    assert!((30..70).contains(&first), "w1 got {first} of 100");
    assert_eq!(world.judge(None), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_commands_are_final() {
    let world = World::started(2, &["w1"]).await;
    world.submit(submit("a", soon(60_000), &[])).await;
    let answer = world
        .command("a", Order::ExtendBy(Duration::from_mins(1)), None)
        .await;
    assert_eq!(answer.refusal(), Refusal::None);
    let message = answer.message.unwrap();
    assert!(message.due_ms > soon(110_000).as_millis());
    let answer = world.command("a", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::None);
    assert_eq!(answer.message.unwrap().state(), State::Withdrawn);
    let answer = world.command("a", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::WrongState);
    let answer = world.command("nothing", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::Unknown);
    assert_eq!(world.look_up("nothing").await, None);
    assert_eq!(world.receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_may_have_been_delivered_cannot_be_taken_back_but_stopped() {
    let world = World::started(1, &["w1"]).await;
    world.receiver.says("a", &[Say::Hang]);
    world.submit(submit("a", soon(50), &[])).await;
    wait_for!(world.receiver.count() == 1);
    for order in [Order::Withdraw, Order::ExtendBy(Duration::from_secs(1))] {
        let answer = world.command("a", order, None).await;
        assert_eq!(answer.refusal(), Refusal::MayHaveBeenDelivered);
        assert_eq!(answer.message.unwrap().state(), State::Firing);
    }
    let answer = world.command("a", Order::Stop, None).await;
    assert_eq!(answer.refusal(), Refusal::None);
    world.receiver.let_go("a");
    wait_for!(world.stats(1).outcomes == 1);
    assert_eq!(world.state("a").await, State::Stopped);
    assert_eq!(world.receiver.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_an_answer_leaves_its_message_in_doubt() {
    let world = World::started(1, &["w1"]).await;
    world.receiver.says("a", &[Say::Unknown]);
    world.submit(submit("a", soon(20), &[60_000])).await;
    wait_for!(world.stats(1).outcomes == 1);
    let answer = world.command("a", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::MayHaveBeenDelivered);
    assert!(answer.message.unwrap().in_doubt);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_tried_again_by_the_schedule_until_dead_and_replayed() {
    let world = World::started(1, &["w1"]).await;
    world.receiver.says("a", &[Say::No, Say::No, Say::No]);
    world.submit(submit("a", soon(20), &[50, 100])).await;
    world.reaches("a", State::Dead).await;
    let came = world.receiver.of("a");
    assert_eq!(came.len(), 3);
    assert!(came[1].at.since(came[0].at) >= Duration::from_millis(50));
    assert!(came[2].at.since(came[1].at) >= Duration::from_millis(100));
    let message = world.look_up("a").await.unwrap();
    assert_eq!(
        (message.failures, message.cause()),
        (3, proto::Cause::Exhausted)
    );
    let answer = world
        .command("a", Order::Replay { to: id("b") }, None)
        .await;
    assert_eq!(answer.refusal(), Refusal::None);
    assert_eq!(answer.message.unwrap().replayed_as, "b");
    world.reaches("b", State::Delivered).await;
    world.receiver.says("c", &[Say::Never]);
    world.submit(submit("c", soon(0), &[50, 100])).await;
    world.reaches("c", State::Dead).await;
    assert_eq!(world.receiver.of("c").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_a_key_is_done_once() {
    let world = World::started(1, &[]).await;
    world.submit(submit("a", soon(60_000), &[])).await;
    let minute = Order::ExtendBy(Duration::from_mins(1));
    let first = world.command("a", minute.clone(), Some(("k", 1))).await;
    let again = world.command("a", minute.clone(), Some(("k", 1))).await;
    assert_eq!(first.due_ms, again.due_ms);
    assert_eq!(again.refusal(), Refusal::None);
    let other = world.command("a", minute, Some(("k", 2))).await;
    assert_eq!(other.refusal(), Refusal::OtherCommand);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_comes_again_is_taken_once_and_verdicts_are_told() {
    let world = World::started(1, &[]).await;
    let first = submit("a", soon(60_000), &[]);
    let verdict = |digest: u8, submitted: u64| {
        request::What::Verdict(proto::AwaitVerdict {
            id: "a".to_owned(),
            digest: vec![digest; 32].into(),
            submitted_ms: submitted,
            within_ms: 10_000,
        })
    };
    let waiting = world.call(1, 0, verdict(7, first.at.as_millis()));
    let submitting = world.submit(first.clone());
    let (told, ()) = tokio::join!(waiting, submitting);
    assert_eq!(told, reply::What::Verdict(proto::Verdict::Accepted.into()));
    world.submit(first.clone()).await;
    let mut other = first.clone();
    other.digest = RequestDigest([8; 32]);
    world.submit(other).await;
    for (digest, submitted, expected) in [
        (7, first.at.as_millis(), proto::Verdict::Accepted),
        (7, 5, proto::Verdict::Duplicate),
        (8, 5, proto::Verdict::Conflict),
    ] {
        let told = world.call(1, 0, verdict(digest, submitted)).await;
        assert_eq!(told, reply::What::Verdict(expected.into()));
    }
    assert_eq!(world.stats(1).accepted, 1);
    // Of what never came there is none.
    let never = request::What::Verdict(proto::AwaitVerdict {
        id: "never".to_owned(),
        digest: vec![7; 32].into(),
        submitted_ms: 1,
        within_ms: 20,
    });
    let told = world.call(1, 0, never).await;
    assert_eq!(told, reply::What::Verdict(proto::Verdict::NoneYet.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_too_long_is_not_accepted() {
    let world = World::started(1, &[]).await;
    let mut old = submit("a", soon(60_000), &[]);
    old.at = laneway_delay::Timestamp::from_millis(now().as_millis() - 13 * 3_600_000);
    let mailboxes = &world.centers[&1].center.mailboxes;
    let failure = crate::intake::deliver(mailboxes, 0, old).await.unwrap_err();
    assert_eq!(failure.kind(), laneway::lanes::FailureKind::Fatal);
    assert!(
        failure.message().contains("waited in the intake"),
        "{failure:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_listed_and_counted_by_the_owner_alone() {
    let mut world = World::started(1, &[]).await;
    for number in 0..5 {
        world
            .submit(submit(&format!("m{number}"), soon(60_000), &[]))
            .await;
    }
    let list = |after: Option<proto::Place>| {
        request::What::List(proto::List {
            state: State::Scheduled.into(),
            limit: 3,
            after,
            ..proto::List::default()
        })
    };
    let reply::What::Page(page) = world.call(1, 0, list(None)).await else {
        panic!("no page");
    };
    assert_eq!((page.messages.len(), page.has_more), (3, true));
    let behind = page.messages.last().unwrap();
    let place = proto::Place {
        at_ms: behind.next_ms,
        id: behind.id.clone(),
    };
    let reply::What::Page(page) = world.call(1, 0, list(Some(place))).await else {
        panic!("no page");
    };
    assert_eq!((page.messages.len(), page.has_more), (2, false));
    let counts = request::What::Counts(proto::CountsRequest {});
    let reply::What::Counts(counts) = world.call(1, 0, counts).await else {
        panic!("no counts");
    };
    assert_eq!(counts.topics[0].scheduled, 5);
    let other = world.start_center(super::world::Make::default());
    let told = world.call(other, 0, list(None)).await;
    assert_eq!(told, reply::What::NotOwner(true));
    let request = proto::Request {
        shard: 9,
        what: Some(list(None)),
    };
    assert!(world.centers[&1].center.call(request).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_without_an_answer_are_sent_again_and_count_once() {
    let world = World::started(1, &["w1"]).await;
    world.centers[&1].log.lose_answers(2);
    world.submit(submit("a", soon(500), &[])).await;
    world.centers[&1].log.lose_appends(2);
    world.submit(submit("b", soon(500), &[])).await;
    world.reaches("a", State::Delivered).await;
    world.reaches("b", State::Delivered).await;
    assert_eq!(world.receiver.count(), 2);
    assert!(world.stats(1).unknown_appends >= 4);
    assert_eq!(world.stats(1).takeovers, 1);
}

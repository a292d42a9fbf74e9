//! A receive, with centers that say what they are told to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use laneway::topic::Topic;
use laneway::{Bus, DELAY_TOPIC};
use laneway_delay::clock::SystemClock;
use laneway_delay::message::Reason;
use laneway_delay::{
    BoxFuture, Extend, MessageId, Query, Sinks, StateName, Submission, Target, When, Withdraw,
};
use laneway_registry::{Instance, Registration, Registry, Role};
use laneway_rpc::proto::{self, reply, request};
use laneway_rpc::{CallError, CenterCalls};
use parking_lot::Mutex;

use super::{Parts, Receive};
use crate::cluster::owners::Owners;
use crate::messages::{Error, List, Messages};

const SHARDS: u32 = 2;

type Answer = Result<reply::What, CallError>;

/// Answers what it is asked by a function, and notes it.
struct Fake {
    answer: Box<dyn Fn(u32, request::What) -> Answer + Send + Sync>,
    asked: Mutex<Vec<request::What>>,
}

impl CenterCalls for Fake {
    fn call(&self, request: proto::Request) -> BoxFuture<'_, Result<proto::Reply, CallError>> {
        let what = request.what.expect("a question");
        self.asked.lock().push(what.clone());
        let answer = (self.answer)(request.shard, what);
        let answer = answer.map(|what| proto::Reply { what: Some(what) });
        Box::pin(std::future::ready(answer))
    }
}

fn center(answer: impl Fn(u32, request::What) -> Answer + Send + Sync + 'static) -> Arc<Fake> {
    Arc::new(Fake {
        answer: Box::new(answer),
        asked: Mutex::default(),
    })
}

/// These answers, one after the other.
fn in_turn(answers: impl IntoIterator<Item = Answer>) -> Arc<Fake> {
    let answers: Mutex<VecDeque<Answer>> = Mutex::new(answers.into_iter().collect());
    center(move |_, _| answers.lock().pop_front().expect("no more is asked"))
}

struct World {
    receive: Receive,
    _registered: Vec<Registration>,
}

async fn world(centers: &[Arc<Fake>]) -> World {
    let bus = Bus::open("memory:").await.expect("a bus");
    let intake = Topic::domain(DELAY_TOPIC).partitions(SHARDS).build();
    bus.declare(&intake.expect("a topic"))
        .await
        .expect("declared");
    let registry = Registry::local();
    let registered = (0..centers.len())
        .map(|n| registry.register(Instance::new(Role::Center, "c", n.to_string())))
        .collect();
    let mut directory = registry.watch(Role::Center);
    let all = directory.wait_for(|seen| seen.instances().count() == centers.len());
    drop(all.await.expect("a registry"));
    let centers = centers.to_vec();
    let dial = move |address: &str| -> Arc<dyn CenterCalls> {
        centers[address.parse::<usize>().expect("a number")].clone()
    };
    let receive = Receive::new(Parts {
        bus,
        shards: SHARDS,
        largest: 200_000,
        sinks: Sinks::default(),
        clock: Arc::new(SystemClock::default()),
        max_delay: None,
        owners: Arc::new(Owners::new(directory, Box::new(dial), None)),
        lacks: Box::new(Vec::new),
        doubts: Box::new(Vec::new),
    });
    World {
        receive,
        _registered: registered,
    }
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).expect("an id")
}

fn submission() -> Submission {
    let target = Target::callback("http://localhost/");
    Submission::new("t", When::After(Duration::from_mins(1)), target)
}

fn message(id: &str, state: proto::State, at_ms: u64) -> proto::Message {
    proto::Message {
        id: id.to_owned(),
        version: 1,
        topic: "t".to_owned(),
        state: state.into(),
        due_ms: at_ms,
        next_ms: at_ms,
        ended_ms: at_ms,
        ..proto::Message::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a center may also give none")]
fn answered(refusal: proto::Refusal, message: proto::Message) -> Answer {
    Ok(reply::What::Answer(proto::Answer {
        refusal: refusal.into(),
        due_ms: message.due_ms,
        message: Some(message),
    }))
}

#[expect(clippy::unnecessary_wraps, reason = "a center may also give none")]
fn found(message: Option<proto::Message>) -> Answer {
    Ok(reply::What::Found(proto::Found { message }))
}

#[expect(clippy::unnecessary_wraps, reason = "a center may also give none")]
fn verdict(verdict: proto::Verdict) -> Answer {
    Ok(reply::What::Verdict(verdict.into()))
}

const NOT_OWNER: Answer = Ok(reply::What::NotOwner(true));

#[tokio::test]
async fn the_owner_is_found_among_the_centers_and_asked_first_from_then_on() {
    let others = center(|_, _| NOT_OWNER);
    let owner = center(|_, _| found(Some(message("a", proto::State::Scheduled, 7))));
    let broken = center(|_, _| Err(CallError::Unreachable("gone".to_owned())));
    let world = world(&[others.clone(), owner.clone(), broken.clone()]).await;
    for _ in 0..3 {
        let message = world.receive.get(&id("a")).await.expect("found");
        assert_eq!(message.record.due().as_millis(), 7);
    }
    assert_eq!(owner.asked.lock().len(), 3);
    let wrong = others.asked.lock().len() + broken.asked.lock().len();
    assert!(wrong <= 2, "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn without_an_owner_the_answer_names_the_shard_within_the_deadline() {
    let world = world(&[center(|_, _| NOT_OWNER)]).await;
    let began = tokio::time::Instant::now();
    let error = world.receive.get(&id("a")).await.expect_err("no owner");
    assert!(began.elapsed() <= Duration::from_secs(6));
    let shard = laneway_cluster::shard_of(&id("a"), SHARDS);
    assert!(
        error.to_string().contains(&format!("shard {shard}")),
        "{error}"
    );
    assert!(matches!(error, Error::NoOwner(_)), "{error:?}");
}

#[tokio::test]
async fn a_submit_that_nobody_named_needs_no_center() {
    let world = world(&[]).await;
    let submissions = vec![submission(), submission()];
    let accepted = world.receive.submit(submissions, None).await;
    let ids: Vec<_> = accepted
        .into_iter()
        .map(|it| it.expect("taken").id)
        .collect();
    assert_ne!(ids[0], ids[1]);
    // A proxy that asks again gets the same ids, and no verdict is awaited for them.
    let submit = async || {
        let all = world
            .receive
            .submit(vec![submission(), submission()], Some("r-1"));
        let ids = all.await.into_iter().map(|it| it.expect("taken").id);
        ids.collect::<Vec<_>>()
    };
    let first = submit().await;
    assert_eq!(first, submit().await);
    assert_ne!(first[0], first[1]);
}

#[tokio::test]
async fn the_verdict_of_the_owner_is_the_answer_to_a_submit_with_an_id_or_key() {
    let delivered = message("a", proto::State::Delivered, 5);
    let answers = [
        verdict(proto::Verdict::Accepted),
        verdict(proto::Verdict::NoneYet),
        verdict(proto::Verdict::Duplicate),
        found(Some(delivered)),
        verdict(proto::Verdict::Conflict),
        verdict(proto::Verdict::Conflict),
    ];
    let world = world(&[in_turn(answers)]).await;
    let submit = async |submission: Submission| {
        let mut answers = world.receive.submit(vec![submission], None).await;
        answers.pop().expect("an answer")
    };
    assert!(submit(submission().id(id("a"))).await.expect("new").is_new);
    let again = submit(submission().id(id("a"))).await.expect("the same");
    assert_eq!(
        (again.is_new, again.state),
        (false, Some(StateName::Delivered))
    );
    assert_eq!(again.due.as_millis(), 5);
    let taken = submit(submission().id(id("a"))).await.expect_err("another");
    assert!(
        matches!(taken, Error::Delay(laneway_delay::Error::IdTaken(_))),
        "{taken}"
    );
    let reused = submit(submission().idempotency_key("k"))
        .await
        .expect_err("another");
    assert!(
        matches!(&reused, Error::Delay(laneway_delay::Error::KeyReused { key, .. }) if key == "k")
    );
    let both = submit(submission().id(id("a")).idempotency_key("k")).await;
    assert_eq!(both, Err(Error::IdAndKey));
}

#[tokio::test]
async fn what_the_broker_would_not_take_is_refused_with_its_limit() {
    let world = world(&[]).await;
    let large = submission().payload(vec![b'x'; 110_000]);
    let mut answers = world.receive.submit(vec![large, submission()], None).await;
    answers.pop().expect("two").expect("the other one is taken");
    let error = answers
        .pop()
        .expect("two")
        .expect_err("too large")
        .to_string();
    assert!(error.contains(&(200_000 - 65_536).to_string()), "{error}");
}

#[tokio::test]
async fn a_withdraw_whose_first_try_was_not_answered_is_a_yes_if_it_took_effect() {
    let withdrawn = || message("a", proto::State::Withdrawn, 5);
    let wrong_state = || answered(proto::Refusal::WrongState, withdrawn());
    let answers = [Err(CallError::Deadline), wrong_state(), wrong_state()];
    let world = world(&[in_turn(answers)]).await;
    let withdraw = async || {
        let mut answers = world
            .receive
            .withdraw(vec![id("a")], Withdraw::Unsent, None)
            .await;
        answers.pop().expect("an answer")
    };
    withdraw().await.expect("it is withdrawn");
    let error = withdraw().await.expect_err("it was before");
    let Error::Delay(laneway_delay::Error::Refused(refusal)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(refusal.reason, Reason::WrongState);
}

#[tokio::test]
async fn a_message_that_may_have_been_delivered_is_refused_as_on_one_machine() {
    let firing = || message("a", proto::State::Firing, 5);
    let doubted = || message("a", proto::State::Scheduled, 5);
    let may = proto::Refusal::MayHaveBeenDelivered;
    let world = world(&[in_turn([answered(may, firing()), answered(may, doubted())])]).await;
    let extend = async || {
        let by = Extend::By(Duration::from_secs(1));
        let mut answers = world.receive.extend(vec![(id("a"), by)], None).await;
        let error = answers.pop().expect("an answer").expect_err("refused");
        error.to_string()
    };
    assert_eq!(extend().await, "cannot extend: the message is firing");
    assert!(extend().await.contains("may have been delivered"));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_merged_over_shards_and_names_those_that_are_missing() {
    // Shard 0 has the even moments and shard 1 the odd ones, two on a page.
    let page = |shard: u32, list: &proto::List| {
        let after = list.after.as_ref().map_or(0, |place| place.at_ms);
        let all = (1..=9_u64).filter(|at| at % 2 == u64::from(shard) && *at > after);
        let all: Vec<_> = all
            .map(|at| message(&format!("m-{at}"), proto::State::Scheduled, at))
            .collect();
        let has_more = all.len() > 2;
        let messages = all.into_iter().take(2).collect();
        Ok(reply::What::Page(proto::Page { messages, has_more }))
    };
    let both = center(move |shard, what| match what {
        request::What::List(list) => page(shard, &list),
        _ => NOT_OWNER,
    });
    let of_both = world(&[both]).await;
    let mut list = List {
        query: Query::new(StateName::Scheduled),
        after: None,
    };
    let mut seen = Vec::new();
    loop {
        let page = of_both.receive.list(&list).await.expect("a page");
        assert!(page.incomplete.is_empty());
        seen.extend(page.messages.iter().map(|it| it.record.due().as_millis()));
        list.after = page.next;
        if list.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1..=9).collect::<Vec<_>>());
    let one = center(move |shard, what| match what {
        request::What::List(list) if shard == 0 => page(shard, &list),
        _ => NOT_OWNER,
    });
    let of_one = world(&[one]).await;
    let page = of_one.receive.list(&list).await.expect("a page");
    assert_eq!(page.incomplete, [1]);
    assert_eq!(page.messages.len(), 2);
}

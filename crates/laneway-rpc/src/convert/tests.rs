use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use laneway_cluster::apply::Kept;
use laneway_cluster::owner::{Go, Order, Outcome, Request, Submit, Verdict};
use laneway_cluster::record::{
    Answer, Cause, Doubt, Event, HistoryEvent, Image, Instance, Key, Refusal, RequestDigest, State,
};
use laneway_cluster::worker::Status;
use laneway_delay::{
    BusTarget, Callback, DeathCause, Failure, MessageId, Method, Schedule, Target, Timestamp,
    Undelivered,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::proto::{self, ending::How};

fn ids() -> impl Strategy<Value = MessageId> {
    "[A-Za-z0-9_:-]{1,128}".prop_map(|id| MessageId::new(id).unwrap())
}

fn millis_of_any_size() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_millis)
}

fn moments() -> impl Strategy<Value = Timestamp> {
    any::<u64>().prop_map(Timestamp::from_millis)
}

fn payloads() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn targets() -> impl Strategy<Value = Target> {
    let method = proptest::sample::select(Method::ALL.to_vec());
    let headers = vec((".{0,8}", ".{0,8}"), 0..4);
    let callback = (".{0,30}", method, headers, option::of(millis_of_any_size()));
    let callback = callback.prop_map(|(url, method, headers, timeout)| {
        Target::Callback(Callback {
            url,
            method,
            headers,
            timeout,
        })
    });
    let bus = (".{0,9}", ".{0,9}", ".{0,9}");
    let bus = bus.prop_map(|(topic, aggregate_id, event_type)| {
        Target::Bus(BusTarget {
            topic,
            aggregate_id,
            event_type,
        })
    });
    prop_oneof![callback, bus]
}

fn all_parts() -> impl Strategy<Value = Parts> {
    let metadata = btree_map(".{0,8}", ".{0,8}", 0..4);
    let retry = option::of(vec(millis_of_any_size(), 0..5).prop_map(Schedule::new));
    let parts = (
        targets(),
        payloads(),
        option::of(".{0,12}"),
        metadata,
        retry,
    );
    parts.prop_map(|(target, payload, content_type, metadata, retry)| Parts {
        target,
        payload,
        content_type,
        metadata,
        retry,
    })
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let failed = (".{0,30}", millis_of_any_size(), any::<bool>());
    prop_oneof![
        Just(Outcome::Delivered),
        Just(Outcome::Unknown),
        millis_of_any_size().prop_map(|wait| Outcome::HandedBack { wait }),
        failed.prop_map(|(reason, after, is_final)| Outcome::Failed {
            reason,
            after,
            is_final
        }),
    ]
}

fn orders() -> impl Strategy<Value = Order> {
    prop_oneof![
        moments().prop_map(Order::ExtendTo),
        millis_of_any_size().prop_map(Order::ExtendBy),
        Just(Order::Withdraw),
        Just(Order::Stop),
        ids().prop_map(|to| Order::Replay { to }),
        Just(Order::Purge),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let what = prop_oneof![
        moments().prop_map(HistoryEvent::Extended),
        (any::<u32>(), ".{0,20}").prop_map(|(attempt, why)| HistoryEvent::Failed(attempt, why)),
        any::<u32>().prop_map(HistoryEvent::Delivered),
        Just(HistoryEvent::Died),
        Just(HistoryEvent::Withdrawn),
        Just(HistoryEvent::Stopped),
        ids().prop_map(HistoryEvent::Replayed),
    ];
    (moments(), what).prop_map(|(at, what)| Event { at, what })
}

/// Over the wire and back.
fn sent<T: prost::Message + Default>(message: &T) -> T {
    T::decode(Bytes::from(message.encode_to_vec())).unwrap()
}

fn an_id() -> MessageId {
    MessageId::new("a").unwrap()
}

fn some_parts() -> Parts {
    Parts {
        target: Target::callback("http://localhost/"),
        payload: Bytes::from("{}"),
        content_type: None,
        metadata: BTreeMap::new(),
        retry: None,
    }
}

fn kept(state: State) -> Kept {
    let due = Timestamp::from_millis(1_000);
    let accepted = Timestamp::from_millis(10);
    let digest = RequestDigest([3; 32]);
    let body = body(&some_parts());
    let image = Image {
        state,
        ..Image::accepted(due, accepted, digest, "t".into(), body)
    };
    Kept {
        version: 7,
        image_at: 0,
        changed_at: 0,
        image,
    }
}

fn names<T: std::fmt::Debug>(result: Result<T, Invalid>, field: &str) {
    assert_eq!(result.unwrap_err().field, field);
}

proptest! {
    #[test]
    fn parts_come_back(given in all_parts()) {
        prop_assert_eq!(body(&given), body(&given));
        prop_assert_eq!(parts(body(&given)), Ok(given));
    }

    #[test]
    fn submits_come_back(
        (id, given, digest) in (ids(), all_parts(), any::<[u8; 32]>()),
        due in 0..Timestamp::LAST_DUE.as_millis(),
        at in moments(),
        topic in ".{1,20}",
    ) {
        let submit = Submit {
            id,
            digest: RequestDigest(digest),
            due: Timestamp::from_millis(due),
            at,
            topic,
            body: body(&given),
        };
        let record = Bytes::from(intake(&submit).encode_to_vec());
        prop_assert_eq!(decode_intake(record), Ok(submit));
    }

    #[test]
    fn outcomes_come_back(outcome in outcomes(), id in ids(), attempt in 1..u32::MAX) {
        let ending = proto::Ending::from(outcome.clone());
        prop_assert_eq!(Outcome::try_from(sent(&ending)), Ok(outcome.clone()));
        let worker = Instance([7; 16]);
        let waits = vec![Duration::from_secs(1)];
        let frame = super::outcome(3, &id, attempt, ending);
        let request = Request::Outcome { worker, id, attempt, outcome, waits: waits.clone() };
        prop_assert_eq!(settle(worker, sent(&frame), waits), Ok(request));
    }

    #[test]
    fn what_workers_say_comes_back(
        ended in outcomes(), id in ids(), which in 0..4, epoch: u64, attempt in 1..u32::MAX,
    ) {
        let asked = Asked { shard: 5, epoch, id, attempt };
        prop_assert_eq!(Asked::try_from(sent(&proto::Ask::from(&asked))), Ok(asked.clone()));
        let said = match which {
            0 => Status::Refused,
            1 => Status::Disclaimed,
            2 => Status::Runs,
            _ => Status::Ended(ended),
        };
        let frame = sent(&status(&asked, said.clone()));
        prop_assert_eq!(<(Asked, Status)>::try_from(frame), Ok((asked, said)));
    }

    #[test]
    fn commands_come_back(
        id in ids(), order in orders(), key in option::of(any::<([u8; 16], [u8; 32])>()),
    ) {
        let key = key.map(|(key, digest)| (Key(key), RequestDigest(digest)));
        let frame = sent(&command(&id, &order, key));
        let commanded = Commanded { id: id.clone(), order: order.clone(), key };
        prop_assert_eq!(Commanded::try_from(frame.clone()), Ok(commanded));
        let what = Some(proto::request::What::Command(frame));
        let asked = request(9, proto::Request { shard: 1, what });
        let ticket = 9;
        prop_assert_eq!(asked, Ok(Some(Request::Command { ticket, id, order, key })));
    }

    #[test]
    fn messages_come_back(
        (id, given, version) in (ids(), all_parts(), any::<u64>()),
        (due, accepted) in (moments(), moments()),
        (attempts, failures) in any::<(u32, u32)>(),
        happened in vec(events(), 0..5),
    ) {
        let mut kept = kept(State::Scheduled);
        kept.version = version;
        kept.image.due = due;
        kept.image.next = due;
        kept.image.accepted = accepted;
        kept.image.body = body(&given);
        kept.image.attempts = attempts;
        kept.image.failures = failures;
        kept.image.history = happened;
        let now = Timestamp::from_millis(0);
        let shown = sent(&message(&id, &kept, now, Contents::With).unwrap());
        prop_assert!(!is_gone(&shown));
        prop_assert_eq!(shown.history.len(), kept.image.history.len());
        let message = restore(shown).unwrap();
        prop_assert_eq!(&message.id, &id);
        prop_assert_eq!(&message.topic, "t");
        prop_assert_eq!(message.record.version().as_u64(), version);
        prop_assert_eq!(message.record.due(), due);
        prop_assert_eq!(message.record.attempts(), attempts);
        prop_assert_eq!(message.record.failures(), failures);
        prop_assert_eq!(message.record.state(), laneway_delay::State::Scheduled { at: due });
        prop_assert!(!message.record.is_in_doubt());
        prop_assert_eq!(message.accepted, accepted);
        prop_assert_eq!(message.history.len(), kept.image.history.len());
        let laneway_delay::Message { target, payload, content_type, metadata, retry, .. } = message;
        let back = Parts { target, payload, content_type, metadata, retry };
        prop_assert_eq!(back, given);
    }

    #[test]
    fn gos_come_back(id in ids(), given in all_parts(), epoch: u64, attempt in 1..u32::MAX) {
        let worker = Instance([1; 16]);
        let not_before = Timestamp::from_millis(1_000);
        let given_go = Go { worker, epoch, id: id.clone(), attempt, not_before };
        let mut kept = kept(State::Scheduled);
        kept.image.body = body(&given);
        let frame = sent(&go(3, &given_go, &kept).unwrap());
        prop_assert_eq!(frame.shard, 3);
        prop_assert_eq!(super::attempt(&frame, worker), Ok(given_go));
        let since = Timestamp::from_millis(1_001);
        let message = firing(frame, since).unwrap();
        prop_assert_eq!(message.record.attempts(), attempt);
        prop_assert_eq!(message.record.state(), laneway_delay::State::Firing { since });
        prop_assert_eq!((message.id, message.target), (id, given.target));
    }

    /// Bytes of any kind are refused or taken, and never end the process.
    #[test]
    fn any_bytes_are_judged(bytes in payloads()) {
        let _ = parts(bytes.clone());
        let _ = decode_intake(bytes.clone());
        let _ = proto::Message::decode(bytes.clone()).map(restore);
        let _ = proto::Go::decode(bytes.clone()).map(|go| firing(go, Timestamp::MAX));
        let _ = proto::Request::decode(bytes.clone()).map(|asked| request(1, asked));
        let _ = proto::Status::decode(bytes).map(<(Asked, Status)>::try_from);
    }
}

#[test]
fn answers_and_verdicts_come_back() {
    let due = Timestamp::from_millis(5);
    let refused = [
        Refusal::Unknown,
        Refusal::WrongState,
        Refusal::MayHaveBeenDelivered,
        Refusal::NotLater,
        Refusal::OtherCommand,
        Refusal::TooManyCommands,
    ];
    let answers = refused.map(Answer::Refused).into_iter();
    for answer in answers.chain([Answer::Done { due }]) {
        let frame = sent(&proto::Answer::from(&answer));
        assert_eq!(Answer::try_from(&frame), Ok(answer));
    }
    let verdicts = [
        Verdict::Accepted,
        Verdict::Duplicate,
        Verdict::Conflict,
        Verdict::TooOld,
    ];
    for verdict in verdicts.map(Some).into_iter().chain([None]) {
        let wire = proto::Verdict::from(verdict);
        assert_eq!(Option::<Verdict>::try_from(wire), Ok(verdict));
    }
    names(
        Option::<Verdict>::try_from(proto::Verdict::Unspecified),
        "verdict",
    );
    let later = proto::Answer {
        refusal: 99,
        ..proto::Answer::default()
    };
    names(Answer::try_from(&later), "answer.refusal");
}

#[test]
fn failures_become_the_endings_they_are() {
    let second = Duration::from_secs(1);
    let failed = |after_ms, is_final| {
        How::Failed(proto::Failure {
            reason: "why".into(),
            after_ms,
            is_final,
        })
    };
    for (failure, how) in [
        (Failure::Retry, failed(0, false)),
        (Failure::RetryAfter(second), failed(1_000, false)),
        (Failure::Permanent, failed(0, true)),
        (Failure::Postponed(second), How::HandedBackMs(1_000)),
        (Failure::Unavailable(second), How::HandedBackMs(1_000)),
        (Failure::Unknown, How::Unknown("why".into())),
        (Failure::UnknownAfter(second), How::Unknown("why".into())),
    ] {
        let ending = proto::Ending::from(&Undelivered::new(failure, "why"));
        assert_eq!(ending.how, Some(how), "{failure:?}");
    }
    let ending = proto::Ending::from(&Ok(()));
    assert_eq!(ending.how, Some(How::Delivered(true)));
}

#[test]
fn states_without_a_word_of_their_own_get_the_nearest() {
    let at = Timestamp::from_millis(77);
    let restored = |state: State| {
        let kept = kept(state);
        let shown = message(&an_id(), &kept, at, Contents::Without).unwrap();
        assert_eq!(shown.content, None);
        let is_gone = is_gone(&shown);
        let message = restore(shown).unwrap();
        assert_eq!(message.target, Target::callback(""));
        (message.record.state(), is_gone)
    };
    let dead = |cause| laneway_delay::State::Dead { at, cause };
    let withdrawn = laneway_delay::State::Withdrawn { at };
    for (state, cause) in [
        (Cause::Exhausted, DeathCause::Exhausted),
        (Cause::Rejected, DeathCause::Rejected),
    ] {
        let state = State::Dead { at, cause: state };
        assert_eq!(restored(state), (dead(cause), false));
    }
    assert_eq!(restored(State::Withdrawn { at }), (withdrawn, false));
    assert_eq!(restored(State::Stopped { at }), (withdrawn, false));
    assert_eq!(restored(State::Purged { at }), (withdrawn, true));
    let replayed = State::Replayed { at, to: an_id() };
    assert_eq!(restored(replayed), (dead(DeathCause::Exhausted), true));
    let delivered = laneway_delay::State::Delivered { at };
    assert_eq!(restored(State::Delivered { at }), (delivered, false));
}

#[test]
fn an_open_attempt_fires_until_the_next_one_is_waited_for() {
    let mut kept = kept(State::Scheduled);
    kept.image.attempts = 2;
    let worker = Instance([9; 16]);
    kept.image.doubts.insert(2, Doubt { worker, epoch: 1 });
    let shown = |kept: &Kept, now| {
        let now = Timestamp::from_millis(now);
        message(&an_id(), kept, now, Contents::With).unwrap()
    };
    assert_eq!(shown(&kept, 960).state(), proto::State::Firing);
    assert_eq!(&shown(&kept, 960).worker[..], [9; 16]);
    let message = restore(shown(&kept, 960)).unwrap();
    let since = kept.image.next;
    let firing = laneway_delay::State::Firing { since };
    assert_eq!(message.record.state(), firing);
    assert!(message.record.is_in_doubt());
    // It gave no answer, and another one is to come.
    kept.image.next = Timestamp::from_millis(60_000);
    assert_eq!(shown(&kept, 1_100).state(), proto::State::Scheduled);
    assert!(shown(&kept, 1_100).in_doubt);
}

#[test]
fn an_error_names_the_field() {
    let good = proto::Content::from(some_parts());
    let none = proto::Content {
        target: None,
        ..good.clone()
    };
    names(Parts::try_from(none), "content.target");
    let mut odd = good.clone();
    if let Some(proto::content::Target::Callback(callback)) = &mut odd.target {
        callback.method = "BREW".into();
    }
    names(Parts::try_from(odd.clone()), "content.callback.method");
    names(parts(Bytes::from_static(&[0xff; 3])), "content");

    let submit = Submit {
        id: an_id(),
        digest: RequestDigest([0; 32]),
        due: Timestamp::from_millis(1),
        at: Timestamp::from_millis(1),
        topic: "t".into(),
        body: body(&some_parts()),
    };
    let whole = intake(&submit);
    let changed = |change: fn(&mut proto::Intake)| {
        let mut intake = whole.clone();
        change(&mut intake);
        super::submit(intake)
    };
    names(changed(|intake| intake.id = "a b".into()), "intake.id");
    let digest = changed(|intake| intake.digest = Bytes::from_static(b"short"));
    names(digest, "intake.digest");
    names(changed(|intake| intake.topic.clear()), "intake.topic");
    names(changed(|intake| intake.due_ms = u64::MAX), "intake.due_ms");
    let content = changed(|intake| intake.content = Bytes::from_static(&[0xff]));
    names(content, "intake.content");
    let mut intake = whole.clone();
    intake.content = odd.encode_to_vec().into();
    names(super::submit(intake), "intake.content.callback.method");

    let mut command = command(&an_id(), &Order::Stop, None);
    command.digest = Bytes::from_static(&[1; 32]);
    names(Commanded::try_from(command.clone()), "command.key");
    command.order = Some(proto::command::Order::Withdraw(false));
    names(Commanded::try_from(command), "command.withdraw");
    names(Outcome::try_from(proto::Ending { how: None }), "ending.how");
    names(
        settle(Instance([0; 16]), proto::Outcome::default(), vec![]),
        "outcome.ending",
    );
    names(firing(proto::Go::default(), Timestamp::MAX), "go.id");
    let unnumbered = proto::Go {
        id: "a".into(),
        ..proto::Go::default()
    };
    names(firing(unnumbered, Timestamp::MAX), "go.attempt");
    names(request(1, proto::Request::default()), "request.what");
}

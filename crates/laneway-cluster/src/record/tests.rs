use std::collections::BTreeMap;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::apply::Identity;
use crate::rules::{Rule, Rules};

pub(crate) fn times() -> impl Strategy<Value = Timestamp> {
    prop_oneof![0..10_u64, any::<u64>()].prop_map(Timestamp::from_millis)
}

pub(crate) fn ids() -> impl Strategy<Value = MessageId> {
    vec(0..64_usize, 1..12).prop_map(|letters| {
        const ALLOWED: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
        let text: String = letters.iter().map(|at| char::from(ALLOWED[*at])).collect();
        MessageId::new(text).unwrap()
    })
}

fn digests() -> impl Strategy<Value = RequestDigest> {
    any::<[u8; 32]>().prop_map(RequestDigest)
}

fn keys() -> impl Strategy<Value = Key> {
    any::<[u8; 16]>().prop_map(Key)
}

fn instances() -> impl Strategy<Value = Instance> {
    any::<[u8; 16]>().prop_map(Instance)
}

fn bodies() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn verbs() -> impl Strategy<Value = Verb> {
    prop_oneof![
        Just(Verb::Extend),
        Just(Verb::Withdraw),
        Just(Verb::Stop),
        Just(Verb::Replay),
        Just(Verb::Purge)
    ]
}

fn causes() -> impl Strategy<Value = Cause> {
    prop_oneof![Just(Cause::Exhausted), Just(Cause::Rejected)]
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        times().prop_map(|due| Answer::Done { due }),
        Just(Answer::Refused(Refusal::Unknown)),
        Just(Answer::Refused(Refusal::WrongState)),
        Just(Answer::Refused(Refusal::MayHaveBeenDelivered)),
        Just(Answer::Refused(Refusal::NotLater)),
        Just(Answer::Refused(Refusal::OtherCommand)),
        Just(Answer::Refused(Refusal::TooManyCommands)),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    (verbs(), keys(), digests()).prop_map(|(verb, key, digest)| Command { verb, key, digest })
}

fn states() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Absent),
        Just(State::Scheduled),
        times().prop_map(|at| State::Delivered { at }),
        (times(), causes()).prop_map(|(at, cause)| State::Dead { at, cause }),
        times().prop_map(|at| State::Withdrawn { at }),
        times().prop_map(|at| State::Stopped { at }),
        (times(), ids()).prop_map(|(at, to)| State::Replayed { at, to }),
        times().prop_map(|at| State::Purged { at }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let what = prop_oneof![
        times().prop_map(HistoryEvent::Extended),
        (any::<u32>(), "\\PC{0,12}").prop_map(|(attempt, why)| HistoryEvent::Failed(attempt, why)),
        any::<u32>().prop_map(HistoryEvent::Delivered),
        Just(HistoryEvent::Died),
        Just(HistoryEvent::Withdrawn),
        Just(HistoryEvent::Stopped),
        ids().prop_map(HistoryEvent::Replayed),
    ];
    (times(), what).prop_map(|(at, what)| Event { at, what })
}

pub(crate) fn images() -> impl Strategy<Value = Image> {
    let doubt = (instances(), any::<u64>()).prop_map(|(worker, epoch)| Doubt { worker, epoch });
    let answered =
        (verbs(), digests(), answers(), times()).prop_map(|(verb, digest, answer, at)| Answered {
            verb,
            digest,
            answer,
            at,
        });
    let head = (states(), times(), times(), times(), digests(), "[a-z]{0,8}");
    let counts = (any::<u32>(), any::<u32>(), any::<bool>(), bodies());
    let lists = (
        btree_map(any::<u32>(), doubt, 0..4),
        btree_map(keys(), answered, 0..4),
        vec(events(), 0..4),
    );
    (head, counts, lists).prop_map(|(head, counts, lists)| {
        let (state, due, next, accepted, digest, topic) = head;
        let (attempts, failures, doubt_stays, body) = counts;
        let (doubts, answers, history) = lists;
        Image {
            state,
            next,
            attempts,
            failures,
            doubts,
            doubt_stays,
            answers,
            history,
            ..Image::accepted(due, accepted, digest, topic, body)
        }
    })
}

fn changes() -> impl Strategy<Value = Change> {
    let attempt = any::<u32>();
    let next = prop_oneof![times().prop_map(Next::Again), causes().prop_map(Next::Dead)];
    prop_oneof![
        (times(), times(), digests(), "[a-z.]{0,8}", bodies()).prop_map(
            |(due, at, digest, topic, body)| Change::Accepted {
                due,
                at,
                digest,
                topic,
                body
            }
        ),
        (attempt, instances(), times()).prop_map(|(attempt, worker, at)| Change::Begun {
            attempt,
            worker,
            at
        }),
        (any::<u32>(), times(), times()).prop_map(|(attempt, again, at)| Change::Unstarted {
            attempt,
            again,
            at
        }),
        (any::<u32>(), times()).prop_map(|(attempt, at)| Change::Delivered { attempt, at }),
        (any::<u32>(), next, "\\PC{0,12}", times()).prop_map(|(attempt, next, reason, at)| {
            Change::Failed {
                attempt,
                next,
                reason,
                at,
            }
        }),
        (times(), option::of(commands()), times())
            .prop_map(|(due, command, at)| Change::Extended { due, command, at }),
        (option::of(commands()), times())
            .prop_map(|(command, at)| Change::Withdrawn { command, at }),
        (option::of(commands()), times()).prop_map(|(command, at)| Change::Stopped { command, at }),
        (causes(), times()).prop_map(|(cause, at)| Change::Dead { cause, at }),
        (ids(), option::of(commands()), times()).prop_map(|(to, command, at)| Change::Replayed {
            to,
            command,
            at
        }),
        (times(), times()).prop_map(|(again, at)| Change::Rescheduled { again, at }),
        (option::of(commands()), times()).prop_map(|(command, at)| Change::Purged { command, at }),
        (commands(), answers(), times()).prop_map(|(command, answer, at)| Change::Answered {
            command,
            answer,
            at
        }),
        images().prop_map(|image| Change::Carried {
            image: Box::new(image)
        }),
        Just(Change::Forgotten(Forgotten::Message)),
        vec(keys(), 0..4).prop_map(|keys| Change::Forgotten(Forgotten::Keys(keys))),
    ]
}

fn rows() -> impl Strategy<Value = Row> {
    let identity = ("[a-z]{0,6}", "[a-z]{0,6}", any::<u32>(), any::<u32>()).prop_map(
        |(cluster, topic, shard, shards)| Identity {
            cluster,
            topic,
            shard,
            shards,
        },
    );
    let digest = any::<[u64; 4]>().prop_map(RowDigest);
    prop_oneof![
        8 => (ids(), 1..u64::MAX, changes())
            .prop_map(|(id, version, change)| Row::Message(MessageRow { id, version, change })),
        1 => (identity, any::<u8>(), any::<u64>())
            .prop_map(|(identity, format, forgotten)| Row::Open(Open { identity, format, forgotten })),
        1 => (any::<u64>(), any::<u64>(), any::<u64>(), digest)
            .prop_map(|(epoch, sequence, rows, digest)| Row::Close(Close { epoch, sequence, rows, digest })),
    ]
}

fn records() -> impl Strategy<Value = Record> {
    let basis =
        (any::<u64>(), any::<[u8; 32]>(), any::<[u64; 4]>()).prop_map(|(read, chain, digest)| {
            Basis {
                read,
                chain: Chain(chain),
                digest: RowDigest(digest),
            }
        });
    let head = (any::<u64>(), any::<[u8; 16]>().prop_map(Reign), basis);
    prop_oneof![
        1 => head.clone().prop_map(|(epoch, reign, basis)| Record::Owner(Owner { epoch, reign, basis })),
        4 => (head, any::<u64>(), vec(rows(), 0..5)).prop_map(|((epoch, reign, basis), sequence, rows)| {
            Record::Fact(Fact { epoch, reign, sequence, basis, rows })
        }),
    ]
}

/// Records with a good check whose inside is anything.
fn sealed(inside: &[u8]) -> Bytes {
    let mut bytes = inside.to_vec();
    bytes.extend_from_slice(&blake3::hash(inside).as_bytes()[..8]);
    bytes.into()
}

proptest! {
    #[test]
    fn what_is_written_is_read(record in records()) {
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn any_bytes_can_be_read(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Record::decode(&bytes.clone().into());
        let ours = [b"LWF\x01F", &bytes[..]].concat();
        let _ = Record::decode(&sealed(&ours));
        let _ = Record::decode(&sealed(&[b"LWF", &bytes[..]].concat()));
    }

    /// The check is made to fit again, so that what is behind it is reached.
    #[test]
    fn records_that_were_changed_can_be_read(
        record in records(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = record.encode();
        let mut inside = bytes[..bytes.len() - 8].to_vec();
        let place = place.index(inside.len());
        inside[place] = byte;
        if let Ok(read) = Record::decode(&sealed(&inside)) {
            prop_assert_eq!(Record::decode(&read.encode()), Ok(read));
        }
        let shorter = &inside[..cut.index(inside.len())];
        let _ = Record::decode(&sealed(shorter));
    }

    #[test]
    fn one_bit_is_found_out(record in records(), place in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = record.encode().to_vec();
        let place = place.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        prop_assert!(Record::decode(&bytes.into()).is_err());
    }
}

fn fact(rows: Vec<Row>) -> Record {
    Record::Fact(Fact {
        epoch: 3,
        reign: Reign([5; 16]),
        sequence: 17,
        basis: Basis {
            read: 4711,
            chain: Chain([9; 32]),
            digest: RowDigest([1, 2, 3, 4]),
        },
        rows,
    })
}

fn message_row(id: &str, version: u64, change: Change) -> Row {
    let id = MessageId::new(id).unwrap();
    Row::Message(MessageRow {
        id,
        version,
        change,
    })
}

/// One of each kind.
#[expect(clippy::too_many_lines, reason = "there are many kinds")]
fn all_kinds() -> Vec<Record> {
    let at = Timestamp::from_millis(1_700_000_000_000);
    let command = Command {
        verb: Verb::Extend,
        key: Key::of("a key"),
        digest: RequestDigest([6; 32]),
    };
    let worker = Instance([8; 16]);
    let id = |text| MessageId::new(text).unwrap();
    let mut image = Image::accepted(at, at, RequestDigest([2; 32]), "t".into(), Bytes::from("b"));
    image.attempts = 2;
    image.failures = 1;
    image.doubts = BTreeMap::from([(2, Doubt { worker, epoch: 3 })]);
    image.answers = BTreeMap::from([(
        command.key,
        Answered {
            verb: Verb::Extend,
            digest: command.digest,
            answer: Answer::Done { due: at },
            at,
        },
    )]);
    image.note(
        Rules::default(),
        at,
        HistoryEvent::Failed(1, "refused".into()),
    );
    let changes = vec![
        Change::Accepted {
            due: at,
            at,
            digest: RequestDigest([2; 32]),
            topic: "reminders".to_owned(),
            body: Bytes::from("{}"),
        },
        Change::Begun {
            attempt: 1,
            worker,
            at,
        },
        Change::Unstarted {
            attempt: 1,
            again: at,
            at,
        },
        Change::Delivered { attempt: 2, at },
        Change::Failed {
            attempt: 1,
            next: Next::Again(at),
            reason: "503".to_owned(),
            at,
        },
        Change::Failed {
            attempt: 1,
            next: Next::Dead(Cause::Rejected),
            reason: "410".to_owned(),
            at,
        },
        Change::Extended {
            due: at,
            command: Some(command),
            at,
        },
        Change::Withdrawn { command: None, at },
        Change::Stopped {
            command: Some(command),
            at,
        },
        Change::Dead {
            cause: Cause::Exhausted,
            at,
        },
        Change::Replayed {
            to: id("other"),
            command: None,
            at,
        },
        Change::Rescheduled { again: at, at },
        Change::Purged { command: None, at },
        Change::Answered {
            command,
            answer: Answer::Refused(Refusal::MayHaveBeenDelivered),
            at,
        },
        Change::Carried {
            image: Box::new(image),
        },
        Change::Forgotten(Forgotten::Message),
        Change::Forgotten(Forgotten::Keys(vec![command.key])),
    ];
    let rows = (1..).zip(changes).map(|(number, change)| {
        let name = format!("message-{number}");
        message_row(&name, number, change)
    });
    let identity = Identity {
        cluster: "c".to_owned(),
        topic: "laneway.delay.log/9f".to_owned(),
        shard: 3,
        shards: 16,
    };
    let open = Open {
        identity,
        format: 1,
        forgotten: 12,
    };
    let close = Close {
        epoch: 3,
        sequence: 17,
        rows: 5,
        digest: RowDigest([4, 3, 2, 1]),
    };
    let owner = Owner {
        epoch: 3,
        reign: Reign([5; 16]),
        basis: *fact(Vec::new()).basis(),
    };
    vec![
        Record::Owner(owner),
        fact(rows.collect()),
        fact(vec![Row::Open(open)]),
        fact(vec![Row::Close(close)]),
        fact(Vec::new()),
    ]
}

#[test]
fn fixture_of_the_log_is_read() {
    let written = || {
        let records = all_kinds();
        let mut bytes = Vec::new();
        for record in records {
            let record = record.encode();
            bytes.extend_from_slice(&u32::try_from(record.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(&record);
        }
        bytes
    };
    let fixture = fixtures::bytes("cluster-log-1.hex", written);
    // What is written today is still that.
    assert_eq!(written(), fixture);
    let mut rest = &fixture[..];
    let mut read = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (record, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        read.push(Record::decode(&Bytes::copy_from_slice(record)).unwrap());
        rest = behind;
    }
    assert_eq!(read, all_kinds());
}

#[test]
fn what_cannot_be_read_is_told_apart() {
    let foreign = Bytes::from("{\"hello\":1}");
    assert_eq!(Record::decode(&foreign), Err(Unreadable::Foreign));
    assert_eq!(Record::decode(&Bytes::new()), Err(Unreadable::Foreign));
    let later = sealed(b"LWF\x02F");
    assert_eq!(Record::decode(&later), Err(Unreadable::Format { found: 2 }));
    let kind = sealed(b"LWF\x01Z");
    assert_eq!(Record::decode(&kind), Err(Unreadable::Kind(b'Z')));
    let cut = fact(Vec::new()).encode();
    let cut = cut.slice(..cut.len() - 1);
    assert!(matches!(Record::decode(&cut), Err(Unreadable::Damaged(_))));
    // A row of an unknown kind: its fact is one of ours, and so is its check.
    let known = fact(vec![message_row(
        "a",
        1,
        Change::Forgotten(Forgotten::Message),
    )])
    .encode();
    let mut inside = known[..known.len() - 8].to_vec();
    let kind = inside.len() - 4;
    assert_eq!(inside[kind], b'g');
    inside[kind] = b'?';
    assert_eq!(
        Record::decode(&sealed(&inside)),
        Err(Unreadable::Kind(b'?'))
    );
}

fn accepted(id: &str, bytes: usize) -> Row {
    let at = Timestamp::from_millis(1);
    let change = Change::Accepted {
        due: at,
        at,
        digest: RequestDigest([0; 32]),
        topic: "t".to_owned(),
        body: vec![0; bytes].into(),
    };
    message_row(id, 1, change)
}

#[test]
fn many_rows_keep_the_bound_and_one_alone_may_be_larger() {
    let mut pack = Pack::default();
    assert!(pack.push(accepted("large", 900 << 10)).is_ok());
    assert!(pack.push(accepted("small", 10)).is_err());

    let mut pack = Pack::default();
    let mut pushed = 0;
    while pack.push(accepted(&format!("m{pushed}"), 1_000)).is_ok() {
        pushed += 1;
    }
    let bytes = fact(pack.into_rows()).encode().len();
    assert!(bytes <= MAX_BYTES && bytes > MAX_BYTES - 2_000, "{bytes}");
    assert!(pushed > 200);
}

#[test]
fn a_message_has_one_row_in_a_fact() {
    let mut pack = Pack::default();
    assert!(pack.push(accepted("a", 1)).is_ok());
    assert!(pack.push(accepted("a", 1)).is_err());
    assert!(pack.push(accepted("b", 1)).is_ok());
}

/// The largest image whose body has one byte, after everything that can happen to it has happened very often.
fn worn_out(rules: Rules) -> usize {
    let at = Timestamp::from_millis(u64::MAX);
    let id = MessageId::new("x".repeat(128)).unwrap();
    let mut image = Image::accepted(at, at, RequestDigest([1; 32]), "t".repeat(256), "b".into());
    image.state = State::Scheduled;
    for attempt in 1..2_000 {
        let begun = Change::Begun {
            attempt,
            worker: Instance([1; 16]),
            at,
        };
        let reason = "é".repeat(1_000);
        let failed = Change::Failed {
            attempt,
            next: Next::Again(at),
            reason,
            at,
        };
        let command = Command {
            verb: Verb::Extend,
            key: Key::of(&attempt.to_string()),
            digest: RequestDigest([1; 32]),
        };
        let answered = Change::Answered {
            command,
            answer: Answer::Done { due: at },
            at,
        };
        // Every other attempt has no outcome.
        let changes = [
            Some(begun),
            (attempt % 2 == 0).then_some(failed),
            Some(answered),
        ];
        for change in changes.into_iter().flatten() {
            if let Some(next) = crate::apply::transition(rules, &image, &change, u64::MAX) {
                image = next;
            }
        }
    }
    let image = Box::new(image);
    let row = message_row(id.as_str(), u64::MAX, Change::Carried { image });
    fact(vec![row]).encode().len()
}

/// What a body leaves room for below the limit of the broker.
const ROOM: usize = 64 << 10;

#[test]
fn whatever_happened_to_a_message_it_can_be_carried() {
    let bytes = worn_out(Rules::default());
    assert!(bytes < ROOM, "{bytes}");
}

#[test]
fn without_bounded_history() {
    let bytes = worn_out(Rules::without(Rule::BoundedHistory));
    assert!(
        bytes > 16 * ROOM,
        "{bytes}: it could be carried all the same"
    );
}

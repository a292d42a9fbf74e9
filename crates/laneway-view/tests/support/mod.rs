//! A log that makes what it is asked for, and compares what readers make of it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use laneway_cluster::apply::{Applied, Head, Identity, Kept, Memory, Shard, Table};
use laneway_cluster::record::{
    Answer, Cause, Change, Close, Command, Fact, Forgotten, Instance, Key, MessageRow, Next, Open,
    Owner, Record, Refusal, Reign, RequestDigest, Row, State, Verb,
};
use laneway_delay::{Counts, MessageId, StateName, Timestamp};
use laneway_view::{ListQuery, View};
use proptest::prelude::*;

pub(crate) fn identity() -> Identity {
    Identity {
        cluster: "c".to_owned(),
        topic: "laneway.delay.log/1".to_owned(),
        shard: 0,
        shards: 1,
    }
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn id(number: u8) -> MessageId {
    MessageId::new(format!("message-{number}")).unwrap()
}

/// A change of a message, as far as a test chooses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) kind: u8,
    pub(crate) id: u8,
    pub(crate) number: u8,
}

pub(crate) fn steps() -> impl Strategy<Value = Step> {
    (0..20_u8, 0..10_u8, any::<u8>()).prop_map(|(kind, id, number)| Step { kind, id, number })
}

/// A log, and a reader with its rows in memory.
pub(crate) struct Log {
    pub(crate) records: Vec<(u64, Bytes)>,
    pub(crate) memory: Shard<Memory>,
    epoch: u64,
    clock: u64,
}

impl Log {
    pub(crate) fn new() -> Self {
        let mut log = Self {
            records: Vec::new(),
            memory: Shard::new(identity(), Memory::default()),
            epoch: 0,
            clock: 1_000,
        };
        log.own();
        log
    }

    fn append(&mut self, bytes: Bytes) -> Applied {
        // Offsets may have gaps.
        let offset = self.records.len() as u64 * 2;
        let applied = self.memory.apply(offset, &bytes).unwrap();
        self.records.push((offset, bytes));
        applied
    }

    pub(crate) fn own(&mut self) {
        self.epoch += 1;
        let owner = Owner {
            epoch: self.epoch,
            reign: Reign([1; 16]),
            basis: self.memory.head().basis(),
        };
        assert_eq!(self.append(Record::Owner(owner).encode()), Applied::Owner);
    }

    pub(crate) fn foreign(&mut self) {
        self.append(Bytes::from_static(b"from somewhere else"));
    }

    pub(crate) fn fact(&mut self, rows: Vec<Row>) -> Vec<bool> {
        let head = self.memory.head();
        let fact = Fact {
            epoch: self.epoch,
            reign: Reign([1; 16]),
            sequence: head.sequence + 1,
            basis: head.basis(),
            rows,
        };
        match self.append(Record::Fact(fact).encode()) {
            Applied::Fact { counted } => counted,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn submit(&mut self, id: &MessageId, due: Timestamp, topic: &str, body: Bytes) {
        let row = Row::Message(MessageRow {
            id: id.clone(),
            version: 1,
            change: Change::Accepted {
                due,
                at: at(1),
                digest: RequestDigest([1; 32]),
                topic: topic.to_owned(),
                body,
            },
        });
        assert_eq!(self.fact(vec![row]), [true]);
    }

    /// Opens the log, carries all rows and closes it.
    pub(crate) fn carry_all(&mut self) {
        let open = Open {
            identity: identity(),
            format: 1,
            forgotten: self.memory.head().forgotten,
        };
        self.fact(vec![Row::Open(open)]);
        for (id, kept) in self.memory.table().clone().iter() {
            let image = Box::new(kept.image.clone());
            self.fact(vec![Row::Message(MessageRow {
                id: id.clone(),
                version: kept.version + 1,
                change: Change::Carried { image },
            })]);
        }
        let head = self.memory.head();
        let open = head.open.unwrap();
        let close = Close {
            epoch: open.epoch,
            sequence: open.sequence,
            rows: head.rows,
            digest: head.digest,
        };
        assert_eq!(self.fact(vec![Row::Close(close)]), [true]);
    }

    /// The row that a step makes, whether it counts or not.
    pub(crate) fn row(&mut self, step: Step) -> Row {
        self.clock += u64::from(step.number % 3);
        let id = id(step.id);
        let kept = self.memory.table().get(&id);
        let version = kept.as_ref().map_or(0, |kept| kept.version) + 1;
        let attempts = kept.as_ref().map_or(0, |kept| kept.image.attempts);
        let change = self.change(step, attempts);
        Row::Message(MessageRow {
            id,
            version,
            change,
        })
    }

    fn change(&self, step: Step, attempts: u32) -> Change {
        let (number, now) = (step.number, at(self.clock));
        let later = at(self.clock + u64::from(number) * 10);
        let key = Key::of(&(number % 4).to_string());
        let command = |verb| {
            let digest = RequestDigest([number; 32]);
            (number % 2 == 0).then_some(Command { verb, key, digest })
        };
        match step.kind {
            0..=5 => Change::Accepted {
                due: later,
                at: now,
                digest: RequestDigest([number; 32]),
                topic: ["", "a", "ab"][usize::from(number % 3)].to_owned(),
                body: vec![number; usize::from(number) * 3].into(),
            },
            6 | 7 => Change::Begun {
                attempt: attempts + 1,
                worker: Instance([number; 16]),
                at: now,
            },
            8 => Change::Unstarted {
                attempt: attempts,
                again: later,
                at: now,
            },
            9 => Change::Delivered {
                attempt: attempts,
                at: now,
            },
            10 => Change::Failed {
                attempt: attempts,
                next: if number % 3 == 0 {
                    Next::Dead(Cause::Exhausted)
                } else {
                    Next::Again(later)
                },
                reason: "refused".to_owned(),
                at: now,
            },
            11 => Change::Extended {
                due: at(self.clock + 10_000),
                command: command(Verb::Extend),
                at: now,
            },
            12 => Change::Withdrawn {
                command: command(Verb::Withdraw),
                at: now,
            },
            13 => Change::Stopped {
                command: command(Verb::Stop),
                at: now,
            },
            14 => Change::Dead {
                cause: Cause::Rejected,
                at: now,
            },
            15 => Change::Replayed {
                to: id(number % 10),
                command: command(Verb::Replay),
                at: now,
            },
            16 => Change::Purged {
                command: None,
                at: now,
            },
            17 => Change::Answered {
                command: Command {
                    verb: Verb::Extend,
                    key,
                    digest: RequestDigest([number; 32]),
                },
                answer: Answer::Refused(Refusal::Unknown),
                at: now,
            },
            18 => Change::Forgotten(Forgotten::Message),
            _ => Change::Forgotten(Forgotten::Keys(vec![key])),
        }
    }
}

/// Opens a view and brings it to the end of the log. Answers the head that the view had.
pub(crate) fn open(directory: &Path, log: &Log) -> (Shard<View>, Option<Head>) {
    let (view, head) = View::open(directory, &identity()).unwrap();
    let mut shard = match head.clone() {
        Some(head) => Shard::resume(head, view).unwrap(),
        None => Shard::new(identity(), view),
    };
    catch_up(&mut shard, log);
    (shard, head)
}

pub(crate) fn catch_up(shard: &mut Shard<View>, log: &Log) {
    for (offset, bytes) in &log.records {
        if *offset >= shard.head().next {
            shard.apply(*offset, bytes).unwrap();
            assert!(shard.table().failure().is_none());
        }
    }
}

const STATES: [StateName; 4] = [
    StateName::Scheduled,
    StateName::Delivered,
    StateName::Dead,
    StateName::Withdrawn,
];

fn listed(kept: &Kept) -> Option<(StateName, Timestamp)> {
    Some(match &kept.image.state {
        State::Scheduled => (StateName::Scheduled, kept.image.next),
        State::Delivered { at } => (StateName::Delivered, *at),
        State::Dead { at, .. } => (StateName::Dead, *at),
        State::Withdrawn { at } | State::Stopped { at } => (StateName::Withdrawn, *at),
        _ => return None,
    })
}

/// Fails unless a view has what rows in memory have.
pub(crate) fn compare(shard: &Shard<View>, log: &Log) {
    let memory = log.memory.table();
    assert_eq!(shard.head(), log.memory.head());
    let view = shard.table();
    let expected: Vec<_> = memory
        .iter()
        .map(|(id, kept)| (id.clone(), kept.clone()))
        .collect();
    assert_eq!(all(|after| view.page(after, 3)), expected);
    for (id, kept) in &expected {
        assert_eq!(view.get(id).as_deref(), Some(kept));
    }
    assert_eq!(view.get(&MessageId::new("unknown").unwrap()), None);

    for state in STATES {
        for topic in [None, Some(""), Some("a"), Some("ab"), Some("b")] {
            compare_list(view, &expected, state, topic);
        }
    }
    compare_places(view, &expected);

    let mut counts = Counts::new();
    for (_, kept) in &expected {
        if let Some((state, _)) = listed(kept) {
            let counts = counts.entry(kept.image.topic.clone()).or_default();
            *match state {
                StateName::Scheduled => &mut counts.scheduled,
                StateName::Delivered => &mut counts.delivered,
                StateName::Dead => &mut counts.dead,
                _ => &mut counts.withdrawn,
            } += 1;
        }
    }
    assert_eq!(view.counts(), counts);
    assert!(view.failure().is_none());
}

fn all(
    page: impl Fn(Option<&MessageId>) -> Vec<(MessageId, std::sync::Arc<Kept>)>,
) -> Vec<(MessageId, Kept)> {
    let mut rows: Vec<(MessageId, Kept)> = Vec::new();
    loop {
        let some = page(rows.last().map(|(id, _)| id));
        if some.is_empty() {
            return rows;
        }
        rows.extend(some.into_iter().map(|(id, kept)| (id, (*kept).clone())));
    }
}

fn compare_list(view: &View, rows: &[(MessageId, Kept)], state: StateName, topic: Option<&str>) {
    let mut expected: BTreeMap<_, _> = rows
        .iter()
        .filter(|(_, kept)| topic.is_none_or(|topic| kept.image.topic == topic))
        .filter_map(|(id, kept)| match listed(kept)? {
            (found, at) if found == state => Some(((at, id.clone()), kept.clone())),
            _ => None,
        })
        .collect();
    let mut query = ListQuery {
        topic: topic.map(str::to_owned),
        limit: 2,
        ..ListQuery::new(state)
    };
    let mut found = BTreeMap::new();
    loop {
        let page = view.list(&query).unwrap();
        let places = page.rows.iter().map(|(at, id, _)| (*at, id.clone()));
        let places: Vec<_> = places.collect();
        assert!(places.is_sorted());
        found.extend(
            places
                .into_iter()
                .zip(page.rows.iter().map(|row| (*row.2).clone())),
        );
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
    // Bounded, and without bodies.
    let middle = expected.keys().nth(expected.len() / 2).map(|(at, _)| *at);
    query.limit = 100;
    query.from = middle;
    query.until = middle.map(|middle| at(middle.as_millis() + 5));
    query.with_bodies = false;
    expected.retain(|(at, _), kept| {
        kept.image.body = Bytes::new();
        query.from.is_some_and(|from| *at >= from) && query.until.is_some_and(|until| *at < until)
    });
    let page = view.list(&query).unwrap();
    let found = page.rows.into_iter();
    let found: BTreeMap<_, _> = found
        .map(|(at, id, kept)| ((at, id), (*kept).clone()))
        .collect();
    assert_eq!(found, expected);
}

fn compare_places(view: &View, rows: &[(MessageId, Kept)]) {
    let due = |(id, kept): &(MessageId, Kept)| match listed(kept)? {
        (StateName::Scheduled, at) => Some((at, id.clone())),
        _ => None,
    };
    let idle = |(id, kept): &(MessageId, Kept)| {
        let image = &kept.image;
        let answered = image.answers.values().map(|answered| answered.at).max();
        let since = match (&image.state, image.state.ended()) {
            (State::Dead { .. }, _) => None,
            (State::Absent, _) => answered,
            (_, ended) => ended.map(|ended| answered.map_or(ended, |at| at.max(ended))),
        };
        Some((since?, id.clone()))
    };
    let mut due: Vec<_> = rows.iter().filter_map(due).collect();
    let mut idle: Vec<_> = rows.iter().filter_map(idle).collect();
    due.sort();
    idle.sort();
    // The same again: what is known of the first places must not change the answer.
    for _ in 0..2 {
        for until in [at(0), at(1_500), at(2_000), Timestamp::MAX] {
            for (expected, is_due) in [(&due, true), (&idle, false)] {
                let mut expected = expected.clone();
                expected.retain(|(at, _)| *at <= until);
                let mut found = Vec::new();
                loop {
                    let after = found.last();
                    let some = if is_due {
                        view.due(after, until, 2)
                    } else {
                        view.forgettable(after, until, 2)
                    };
                    let some = some.unwrap();
                    if some.is_empty() {
                        break;
                    }
                    found.extend(some);
                }
                assert_eq!(found, expected);
            }
        }
    }
}

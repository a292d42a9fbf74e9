use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::*;
use crate::apply::{Identity, Memory, Shard, Table};
use crate::record::{Answer, Key, Refusal, RequestDigest};

/// An owner, its view, and a log that takes what it is told to.
struct Lab {
    shard: Shard<Memory>,
    owner: ShardOwner,
    log: Vec<Bytes>,
    /// Appends that have not landed.
    flying: Vec<Bytes>,
    /// What was decided besides.
    done: Vec<Decision>,
    now: Timestamp,
}

const WORKER: Instance = Instance([3; 16]);

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn submit(text: &str) -> Submit {
    Submit {
        id: id(text),
        digest: RequestDigest([1; 32]),
        due: Timestamp::from_millis(10_000),
        at: Timestamp::from_millis(1),
        topic: "t".to_owned(),
        body: Bytes::from("hello"),
    }
}

impl Lab {
    fn new() -> Self {
        let identity = Identity {
            cluster: "c".to_owned(),
            topic: "t".to_owned(),
            shard: 0,
            shards: 1,
        };
        let mut lab = Self {
            shard: Shard::new(identity, Memory::default()),
            owner: ShardOwner::new(Settings::default()),
            log: Vec::new(),
            flying: Vec::new(),
            done: Vec::new(),
            now: Timestamp::from_millis(1_000),
        };
        lab.owner.assign();
        let verified = lab.shard.verify(None).unwrap();
        let announced = lab.owner.announce(&lab.shard, verified, Reign([1; 16]));
        lab.take(announced);
        lab.settle();
        lab
    }

    fn take(&mut self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Append(bytes) => self.flying.push(bytes),
                other => self.done.push(other),
            }
        }
    }

    fn flush(&mut self) {
        let decisions = self.owner.flush(&self.shard);
        self.take(decisions);
    }

    /// Everything lands and is read.
    fn settle(&mut self) {
        self.flush();
        while !self.flying.is_empty() {
            let bytes = self.flying.remove(0);
            self.land(&bytes);
        }
    }

    fn land(&mut self, bytes: &Bytes) {
        let applied = self.shard.apply(self.log.len() as u64, bytes).unwrap();
        self.log.push(bytes.clone());
        let decisions = self.owner.read(&self.shard, bytes, &applied, self.now);
        self.take(decisions);
        self.flush();
    }

    fn request(&mut self, request: Request) {
        let decisions = self.owner.request(&self.shard, request, self.now);
        self.take(decisions);
    }

    fn accept(&mut self, text: &str) {
        let (offset, submit, ticket) = (0, submit(text), None);
        self.request(Request::Intake {
            offset,
            submit,
            ticket,
        });
        self.settle();
        self.done.clear();
    }

    fn command(&mut self, ticket: Ticket, text: &str, order: Order, key: Option<&str>) {
        let key = key.map(|key| (Key::of(key), RequestDigest([9; 32])));
        let id = id(text);
        self.request(Request::Command {
            ticket,
            id,
            order,
            key,
        });
    }

    fn begin(&mut self, text: &str) {
        let decisions = self.owner.begin(&self.shard, &id(text), WORKER, self.now);
        self.take(decisions);
    }

    fn outcome(&mut self, text: &str, attempt: u32, outcome: Outcome, waits: &[u64]) {
        self.request(Request::Outcome {
            worker: WORKER,
            id: id(text),
            attempt,
            outcome,
            waits: waits.iter().copied().map(Duration::from_secs).collect(),
        });
        self.settle();
    }

    fn state(&self, text: &str) -> State {
        self.shard
            .table()
            .get(&id(text))
            .unwrap()
            .image
            .state
            .clone()
    }

    fn due(&mut self) {
        self.now = self.now + Duration::from_hours(1);
    }
}

fn reply(ticket: Ticket, answer: Answer) -> Decision {
    let reply = Reply::Command(answer);
    Decision::Reply { ticket, reply }
}

fn refused(ticket: Ticket, refusal: Refusal) -> Decision {
    reply(ticket, Answer::Refused(refusal))
}

fn failed() -> Outcome {
    Outcome::Failed {
        reason: "503".to_owned(),
        after: Duration::ZERO,
        is_final: false,
    }
}

#[test]
fn nothing_is_promised_before_it_is_read_back() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.command(1, "a", Order::Withdraw, None);
    lab.flush();
    assert_eq!((lab.flying.len(), lab.done.len()), (1, 0));
    lab.settle();
    let due = Timestamp::from_millis(10_000);
    assert_eq!(lab.done, [reply(1, Answer::Done { due })]);
}

#[test]
fn what_changes_nothing_waits_for_a_barrier_and_one_serves_all() {
    let mut lab = Lab::new();
    for ticket in 0..50 {
        lab.command(ticket, "nobody", Order::Withdraw, None);
    }
    assert!(lab.done.is_empty());
    lab.flush();
    assert_eq!(lab.flying.len(), 1);
    lab.settle();
    let expected: Vec<_> = (0..50)
        .map(|ticket| refused(ticket, Refusal::Unknown))
        .collect();
    assert_eq!(lab.done, expected);
}

#[test]
fn many_decisions_go_into_one_fact_and_two_of_one_message_into_two() {
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.accept(name);
    }
    for (ticket, name) in (0..).zip(["a", "b", "c"]) {
        lab.command(ticket, name, Order::Withdraw, None);
    }
    lab.command(7, "a", Order::ExtendBy(Duration::from_secs(5)), None);
    lab.flush();
    assert_eq!(lab.flying.len(), 2);
    lab.settle();
    // The second one lost, and was decided again behind a barrier.
    assert_eq!(lab.done.last(), Some(&refused(7, Refusal::WrongState)));
    assert_eq!(lab.done.len(), 4);
}

#[test]
fn a_key_gets_one_answer_also_when_it_was_a_refusal() {
    let mut lab = Lab::new();
    lab.command(1, "a", Order::Withdraw, Some("k"));
    lab.settle();
    lab.accept("a");
    lab.command(2, "a", Order::Withdraw, Some("k"));
    lab.command(3, "a", Order::Stop, Some("k"));
    lab.settle();
    let expected = [
        refused(2, Refusal::Unknown),
        refused(3, Refusal::OtherCommand),
    ];
    assert_eq!(lab.done, expected);
    assert_eq!(lab.state("a"), State::Scheduled);
}

#[test]
fn a_relative_extend_that_comes_again_extends_once() {
    let mut lab = Lab::new();
    lab.accept("a");
    let hour = Duration::from_hours(1);
    for ticket in 1..=2 {
        lab.command(ticket, "a", Order::ExtendBy(hour), Some("k"));
        lab.settle();
    }
    let due = Timestamp::from_millis(10_000) + hour;
    let expected = [1, 2].map(|ticket| reply(ticket, Answer::Done { due }));
    assert_eq!(lab.done, expected);
}

#[test]
fn an_attempt_begins_when_it_is_due_once_and_not_after_a_revoke() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.begin("a");
    lab.flush();
    assert!(lab.flying.is_empty(), "it is not due");
    lab.now = Timestamp::from_millis(9_950);
    lab.begin("a");
    lab.begin("a");
    lab.settle();
    let [Decision::Go(go)] = &lab.done[..] else {
        panic!("{:?}", lab.done);
    };
    assert_eq!(
        (go.attempt, go.not_before),
        (1, Timestamp::from_millis(10_000))
    );
    lab.begin("a");
    lab.settle();
    assert_eq!(lab.done.len(), 1, "it is under way");
    lab.owner.revoke();
    assert!(!lab.owner.is_drained());
    lab.outcome("a", 1, failed(), &[1]);
    assert!(lab.owner.is_drained());
    lab.due();
    lab.begin("a");
    assert!(lab.owner.is_drained());
}

#[test]
fn failures_follow_the_waits_and_end_dead() {
    let mut lab = Lab::new();
    lab.accept("a");
    for attempt in 1..=3 {
        lab.due();
        lab.begin("a");
        lab.settle();
        lab.outcome("a", attempt, failed(), &[1, 10]);
    }
    assert!(matches!(lab.state("a"), State::Dead { .. }));
    lab.done.clear();
    let to = id("b");
    lab.command(4, "a", Order::Replay { to: to.clone() }, None);
    lab.settle();
    assert!(matches!(lab.done[..], [Decision::Reply { ticket: 4, .. }]));
    assert!(matches!(lab.state("a"), State::Replayed { .. }));
    let new = lab.shard.table().get(&to).unwrap();
    assert_eq!(
        (new.image.body.clone(), new.image.attempts),
        (Bytes::from("hello"), 0)
    );
}

#[test]
fn handed_back_attempts_do_not_count_towards_dead() {
    let mut lab = Lab::new();
    lab.accept("a");
    let wait = Duration::from_secs(1);
    for attempt in 1..=20 {
        lab.due();
        lab.begin("a");
        lab.settle();
        lab.outcome("a", attempt, Outcome::HandedBack { wait }, &[]);
    }
    assert_eq!(lab.state("a"), State::Scheduled);
    lab.done.clear();
    lab.command(1, "a", Order::Withdraw, None);
    lab.settle();
    assert!(matches!(lab.state("a"), State::Withdrawn { .. }));
}

#[test]
fn what_may_have_been_delivered_is_refused_until_it_is_known_and_can_be_stopped() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.due();
    lab.begin("a");
    lab.settle();
    lab.outcome("a", 1, Outcome::Unknown, &[1]);
    lab.done.clear();
    lab.command(1, "a", Order::Withdraw, None);
    lab.command(2, "a", Order::ExtendBy(Duration::from_secs(9)), None);
    lab.settle();
    let expected = [1, 2].map(|ticket| refused(ticket, Refusal::MayHaveBeenDelivered));
    assert_eq!(lab.done, expected);
    lab.command(3, "a", Order::Stop, None);
    lab.settle();
    assert!(matches!(lab.state("a"), State::Stopped { .. }));
    // Its delivery is history only.
    lab.outcome("a", 1, Outcome::Delivered, &[]);
    assert!(matches!(lab.state("a"), State::Stopped { .. }));
}

#[test]
fn a_late_delivery_ends_the_message_and_a_late_failure_clears_its_own_doubt() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.due();
    lab.begin("a");
    lab.settle();
    lab.owner.worker_died(&lab.shard, WORKER);
    lab.begin("a");
    lab.settle();
    lab.outcome("a", 1, failed(), &[]);
    let image = lab.shard.table().get(&id("a")).unwrap().image.clone();
    assert_eq!((image.state, image.failures), (State::Scheduled, 0));
    assert_eq!(image.doubts.keys().copied().collect::<Vec<_>>(), [2]);
    lab.outcome("a", 2, Outcome::Delivered, &[]);
    assert!(matches!(lab.state("a"), State::Delivered { .. }));
}

#[test]
fn after_an_unknown_append_the_same_bytes_go_out_in_order() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.accept("b");
    lab.command(1, "a", Order::Withdraw, None);
    lab.flush();
    lab.command(2, "b", Order::Withdraw, None);
    lab.flush();
    let sent = std::mem::take(&mut lab.flying);
    assert_eq!(sent.len(), 2);
    let again = lab.owner.append_unknown(&lab.shard, lab.now);
    lab.take(again);
    assert_eq!(lab.flying, sent);
    // The first one has landed after all, and lands again.
    lab.land(&sent[0]);
    lab.settle();
    assert_eq!(lab.done.len(), 2);
    assert!(lab.owner.is_drained());
}

#[test]
fn an_owner_that_is_followed_by_another_sends_its_callers_elsewhere() {
    let mut lab = Lab::new();
    lab.accept("a");
    lab.command(1, "a", Order::Withdraw, None);
    lab.flush();
    lab.command(2, "nobody", Order::Withdraw, None);
    let basis = lab.shard.head().basis();
    let other = Owner {
        epoch: 2,
        reign: Reign([2; 16]),
        basis,
    };
    lab.land(&Record::Owner(other).encode());
    let not_owner = |ticket| Decision::Reply {
        ticket,
        reply: Reply::NotOwner,
    };
    let mut done = lab.done.clone();
    done.sort_by_key(|decision| format!("{decision:?}"));
    assert_eq!(done, [Decision::AnnounceAgain, not_owner(1), not_owner(2)]);
    // What it had sent lands behind it, and is void.
    lab.settle();
    assert_eq!(lab.state("a"), State::Scheduled);
}

#[test]
fn a_log_is_opened_carried_closed_and_trimmed_step_by_step() {
    let mut lab = Lab::new();
    for number in 0..600 {
        lab.accept(&format!("m{number}"));
    }
    let mut trimmed = None;
    for _ in 0..20 {
        let decisions = lab.owner.trim(&lab.shard, trimmed.is_none());
        lab.take(decisions);
        lab.settle();
        trimmed = trimmed.or(lab.done.iter().find_map(|decision| match decision {
            Decision::Trim { before } => Some(*before),
            _ => None,
        }));
    }
    let before = usize::try_from(trimmed.unwrap()).unwrap();
    let left: Vec<_> = (0..).zip(lab.log.iter().cloned()).skip(before).collect();
    let identity = &lab.shard.head().identity;
    let built = crate::apply::rebuild(identity, false, &left, Memory::default).unwrap();
    assert_eq!(built.head(), lab.shard.head());
    assert_eq!(built.table(), lab.shard.table());
    assert!(left.len() < 10, "{} records for 600 messages", left.len());
}

#[test]
fn trimming_pays_when_two_thirds_are_dead() {
    assert!(is_worth_trimming(301, 100));
    assert!(!is_worth_trimming(300, 100));
    assert!(!is_worth_trimming(u64::MAX, u64::MAX));
}

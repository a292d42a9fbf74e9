use std::time::Duration;

use super::*;

const DUE: Timestamp = Timestamp::from_millis(10_000);
const LATER: Timestamp = Timestamp::from_millis(20_000);

fn scheduled() -> Record {
    Record::scheduled(DUE)
}

fn firing() -> Record {
    scheduled().claim(Version::FIRST, DUE).expect("due")
}

fn ended(state: State) -> Record {
    firing().next(state)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

const ACTIONS: [Action; 6] = [
    Action::Claim,
    Action::Deliver,
    Action::Fail,
    Action::Interrupt,
    Action::Extend,
    Action::Withdraw,
];

fn attempt(record: Record, action: Action, version: Version) -> Result<Record, Refusal> {
    match action {
        Action::Claim => record.claim(version, DUE),
        Action::Deliver => record.deliver(version, DUE),
        Action::Fail => record.fail(version, DUE, Failure::Retry, &Schedule::default()),
        Action::Interrupt => record.interrupt(version, DUE),
        Action::Extend => record.extend(version, DUE, LATER),
        Action::Withdraw => record.withdraw(version, DUE),
        Action::Replay | Action::Purge | Action::Replace => {
            unreachable!("no transitions of a record")
        }
    }
}

#[test]
fn every_action_in_every_state_is_allowed_or_refused_as_drawn() {
    let cause = DeathCause::Exhausted;
    let table: [(Record, &[Action]); 5] = [
        (
            scheduled(),
            &[Action::Claim, Action::Extend, Action::Withdraw],
        ),
        (
            firing(),
            &[Action::Deliver, Action::Fail, Action::Interrupt],
        ),
        (ended(State::Delivered { at: DUE }), &[]),
        (ended(State::Dead { at: DUE, cause }), &[]),
        (ended(State::Withdrawn { at: DUE }), &[]),
    ];
    for (record, allowed) in table {
        assert_eq!(record.state().is_final(), allowed.is_empty());
        for action in ACTIONS {
            let answer = attempt(record, action, record.version());
            if allowed.contains(&action) {
                let next = answer.unwrap_or_else(|refusal| panic!("{action}: {refusal}"));
                assert_eq!(next.version(), record.version().next());
            } else {
                let refusal = answer.expect_err("not drawn");
                assert_eq!(refusal.reason, Reason::WrongState);
                assert_eq!(refusal.state, record.state());
                assert_eq!(
                    refusal.to_string(),
                    format!("cannot {action}: the message is {}", record.state())
                );
            }
        }
    }
}

#[test]
fn a_stale_version_is_refused_before_anything_else_and_told_what_won() {
    let record = firing();
    for action in ACTIONS {
        let refusal = attempt(record, action, Version::FIRST).expect_err("stale");
        assert_eq!(
            refusal.reason,
            Reason::Stale {
                expected: Version::FIRST
            }
        );
        assert_eq!(refusal.state, State::Firing { since: DUE });
        assert_eq!(refusal.version, record.version());
    }
}

#[test]
fn a_claim_is_refused_until_the_millisecond_it_is_due() {
    let refusal = scheduled().claim(Version::FIRST, at(9_999)).unwrap_err();
    assert_eq!(refusal.reason, Reason::TooEarly { now: at(9_999) });
    assert_eq!(
        refusal.to_string(),
        "cannot claim: it is 9999 ms, and the message fires at 10000 ms"
    );
    assert!(scheduled().claim(Version::FIRST, at(10_000)).is_ok());
}

#[test]
fn failures_follow_the_schedule_and_end_dead() {
    let schedule = Schedule::default();
    let mut now = DUE;
    let mut record = scheduled();
    let mut waits = Vec::new();
    loop {
        record = record.claim(record.version(), now).expect("due");
        record = record
            .fail(record.version(), now, Failure::Retry, &schedule)
            .expect("firing");
        match record.state() {
            State::Scheduled { at } => {
                waits.push(at.since(now).as_secs());
                now = at;
            }
            state => {
                let cause = DeathCause::Exhausted;
                assert_eq!(state, State::Dead { at: now, cause });
                break;
            }
        }
    }
    assert_eq!(waits, [1, 10, 60, 300, 3_000]);
    assert_eq!((record.attempts(), record.failures()), (6, 6));
    assert_eq!(record.due(), DUE, "a retry does not touch the due time");
}

#[test]
fn retry_after_lengthens_the_wait_but_never_shortens_it() {
    let record = firing();
    for (asked_for, fires_at) in [(30, 40_000), (0, 11_000)] {
        let failure = Failure::RetryAfter(Duration::from_secs(asked_for));
        let waiting = record
            .fail(record.version(), DUE, failure, &Schedule::default())
            .expect("firing");
        assert_eq!(waiting.state(), State::Scheduled { at: at(fires_at) });
    }
}

#[test]
fn retry_after_gives_no_attempt_that_the_schedule_does_not_have() {
    let record = firing();
    let failure = Failure::RetryAfter(Duration::from_secs(1));
    let dead = record
        .fail(record.version(), DUE, failure, &Schedule::new([]))
        .expect("firing");
    let cause = DeathCause::Exhausted;
    assert_eq!(dead.state(), State::Dead { at: DUE, cause });
}

#[test]
fn a_permanent_failure_ends_it_at_once() {
    let record = firing();
    let dead = record
        .fail(
            record.version(),
            DUE,
            Failure::Permanent,
            &Schedule::default(),
        )
        .expect("firing");
    let cause = DeathCause::Rejected;
    assert_eq!(dead.state(), State::Dead { at: DUE, cause });
}

#[test]
fn an_interruption_costs_no_failure_and_fires_again_at_once() {
    let mut record = scheduled();
    for killed in 1..=100 {
        record = record.claim(record.version(), LATER).expect("due");
        record = record.interrupt(record.version(), LATER).expect("firing");
        assert_eq!((record.attempts(), record.failures()), (killed, 0));
    }
    assert_eq!(record.state(), State::Scheduled { at: LATER });
}

#[test]
fn a_clock_that_went_back_brings_no_attempt_before_the_due_time() {
    let record = firing();
    let long_ago = at(0);
    let interrupted = record
        .interrupt(record.version(), long_ago)
        .expect("firing");
    assert_eq!(interrupted.state(), State::Scheduled { at: DUE });
    let failed = record
        .fail(
            record.version(),
            long_ago,
            Failure::Retry,
            &Schedule::default(),
        )
        .expect("firing");
    assert_eq!(failed.state(), State::Scheduled { at: DUE });
}

#[test]
fn extend_moves_the_due_time_and_keeps_the_count() {
    let record = firing();
    let waiting = record
        .fail(record.version(), DUE, Failure::Retry, &Schedule::default())
        .expect("firing");
    let extended = waiting
        .extend(waiting.version(), DUE, LATER)
        .expect("later");
    assert_eq!(extended.due(), LATER);
    assert_eq!(extended.state(), State::Scheduled { at: LATER });
    assert_eq!((extended.attempts(), extended.failures()), (1, 1));
}

#[test]
fn extend_refuses_a_moment_that_is_not_later() {
    let record = scheduled();
    // Not later than it would fire anyway.
    let refusal = record.extend(Version::FIRST, at(0), DUE).unwrap_err();
    let (due, after) = (DUE, DUE);
    assert_eq!(refusal.reason, Reason::NotLater { due, after });
    // Later than that, but past already: a yes would fire it at once.
    let refusal = record
        .extend(Version::FIRST, LATER, at(15_000))
        .unwrap_err();
    let (due, after) = (at(15_000), LATER);
    assert_eq!(refusal.reason, Reason::NotLater { due, after });
    assert_eq!(
        refusal.to_string(),
        "cannot extend: the new due time 15000 ms is not later than 20000 ms"
    );
}

#[test]
fn a_postponed_message_has_used_up_nothing() {
    let once = Schedule::new([]);
    let mut record = scheduled();
    for round in 0..10 {
        let now = DUE + Duration::from_secs(round);
        let firing = record.claim(record.version(), now).expect("due");
        assert_eq!(firing.attempts(), 1);
        let wait = Duration::from_secs(1);
        record = firing
            .fail(firing.version(), now, Failure::Postponed(wait), &once)
            .expect("firing");
        assert_eq!(record.state(), State::Scheduled { at: now + wait });
        assert_eq!((record.attempts(), record.failures()), (0, 0));
        assert_eq!(record.due(), DUE);
    }
}

//! Several hands on one message: whatever the interleaving, one of them wins each round, and what
//! it was promised holds.

use std::time::Duration;

mod bits;

use bits::Bits;
use laneway_delay::{Failure, Record, Refusal, Schedule, State, Timestamp, Version};
use proptest::prelude::*;

/// What somebody does, with what it last saw.
#[derive(Clone, Copy, Debug)]
enum Step {
    Look,
    Claim,
    Deliver,
    Fail(Failure),
    Interrupt,
    Extend { by: u64 },
    Withdraw,
}

/// One step of one of three hands, after the clock moved (in either direction).
#[derive(Clone, Copy, Debug)]
struct Move {
    hand: usize,
    clock: i64,
    step: Step,
}

impl Move {
    fn decode(mut bits: Bits) -> Self {
        let step = match bits.below(14) {
            0..3 => Step::Look,
            3..7 => Step::Claim,
            7 => Step::Deliver,
            8 => Step::Fail(Failure::Permanent),
            9 => Step::Fail(Failure::Retry),
            10 => Step::Fail(Failure::RetryAfter(Duration::from_millis(
                bits.below(5_000),
            ))),
            11 => Step::Interrupt,
            12 => Step::Extend {
                by: bits.below(3_000),
            },
            _ => Step::Withdraw,
        };
        let clock = match bits.below(9) {
            0..8 => bits.below(2_000).cast_signed(),
            _ => -bits.below(5_000).cast_signed(),
        };
        Self {
            hand: usize::try_from(bits.below(3)).expect("one of three"),
            clock,
            step,
        }
    }
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec(any::<u64>(), 1..40)
        .prop_map(|words| words.into_iter().map(Bits).map(Move::decode).collect())
}

fn attempt(
    seen: Record,
    stored: Record,
    now: Timestamp,
    step: Step,
    schedule: &Schedule,
) -> Option<Result<Record, Refusal>> {
    let version = seen.version();
    Some(match step {
        Step::Look => return None,
        Step::Claim => stored.claim(version, now),
        Step::Deliver => stored.deliver(version, now),
        Step::Fail(failure) => stored.fail(version, now, failure, schedule),
        Step::Interrupt => stored.interrupt(version, now),
        Step::Extend { by } => stored.extend(version, now, seen.due() + Duration::from_millis(by)),
        Step::Withdraw => stored.withdraw(version, now),
    })
}

fn check(before: Record, after: Record, now: Timestamp, step: Step) -> Result<(), TestCaseError> {
    prop_assert_eq!(after.version().as_u64(), before.version().as_u64() + 1);
    prop_assert!(!before.state().is_final(), "{} was final", before.state());
    if let State::Scheduled { at } = after.state() {
        prop_assert!(at >= after.due(), "an attempt before the due time");
    }
    if let State::Firing { .. } = after.state() {
        prop_assert!(now >= after.due(), "fired early");
        prop_assert_eq!(after.attempts(), before.attempts() + 1);
    }
    if matches!(step, Step::Extend { .. }) {
        prop_assert!(after.due() > before.due());
    } else {
        prop_assert_eq!(after.due(), before.due());
    }
    prop_assert!(after.failures() <= after.attempts());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    #[test]
    fn any_interleaving_keeps_every_promise(moves in moves()) {
        let schedule = Schedule::new([100, 1_000].map(Duration::from_millis));
        let mut now = Timestamp::from_millis(10_000);
        let mut stored = Record::scheduled(Timestamp::from_millis(11_000));
        let mut seen = [stored; 3];

        for Move { hand, clock, step } in moves {
            let seen = &mut seen[hand];
            now = Timestamp::from_millis(now.as_millis().saturating_add_signed(clock));
            match attempt(*seen, stored, now, step, &schedule) {
                None => *seen = stored,
                Some(Ok(next)) => {
                    prop_assert_eq!(*seen, stored, "a stale view must not win");
                    check(stored, next, now, step)?;
                    stored = next;
                    *seen = next;
                }
                Some(Err(refusal)) => {
                    prop_assert_eq!(refusal.state, stored.state());
                    prop_assert_eq!(refusal.version, stored.version());
                }
            }
        }
        prop_assert!(stored.failures() <= 3, "more attempts than the schedule has");
    }
}

/// Withdraw against claim, from the same view: whichever is written first wins, and the other one
/// learns the truth.
#[test]
fn withdraw_and_claim_exclude_each_other() {
    let now = Timestamp::from_millis(1_000);
    let record = Record::scheduled(now);

    let withdrawn = record.withdraw(Version::FIRST, now).expect("scheduled");
    let refusal = withdrawn.claim(Version::FIRST, now).expect_err("too late");
    assert_eq!(refusal.state, State::Withdrawn { at: now });

    let firing = record.claim(Version::FIRST, now).expect("due");
    let refusal = firing.withdraw(Version::FIRST, now).expect_err("too late");
    assert_eq!(refusal.state, State::Firing { since: now });
}

//! Whatever is done to the wall clock, whenever: nothing is early.

use proptest::prelude::*;

use super::*;

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Op {
    Pass(u64),
    Step(i64),
    /// A message with a delay is submitted.
    Delay(u64),
    /// A message for a moment of the wall clock is submitted.
    At(i64),
    /// The process is gone for so long, and the wall clock is set meanwhile.
    Restart(u64, i64),
}

/// Short and long ones alike.
fn span() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 0..60_000_u64, 0..3_u64 * 3_600_000]
}

fn step() -> impl Strategy<Value = i64> {
    (span(), any::<bool>()).prop_map(|(span, is_back)| {
        let span = span.cast_signed();
        if is_back { -span } else { span }
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => span().prop_map(Op::Pass),
        2 => step().prop_map(Op::Step),
        3 => span().prop_map(Op::Delay),
        1 => step().prop_map(Op::At),
        1 => (span(), step()).prop_map(|(down, step)| Op::Restart(down, step)),
    ]
}

/// A message that waits.
#[derive(Clone, Copy, Debug)]
struct Waits {
    due: Timestamp,
    /// Since when, by the counter, and how long at least.
    delay: Option<(Duration, Duration)>,
}

struct World {
    wall: u64,
    counter: Duration,
    steady: Steady,
    kept: Option<Anchor>,
    waiting: Vec<Waits>,
}

impl World {
    fn new(most: Duration) -> Self {
        let (wall, counter) = (1_000_000_000_000, Duration::from_secs(5));
        let steady = Steady::new(Timestamp::from_millis(wall), counter).distrust(most);
        Self {
            wall,
            counter,
            steady,
            kept: None,
            waiting: Vec::new(),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.wall)
    }

    fn pass(&mut self, millis: u64) {
        self.wall += millis;
        self.counter += Duration::from_millis(millis);
    }

    fn set(&mut self, by: i64) {
        self.wall = self.wall.saturating_add_signed(by);
    }

    fn apply(&mut self, op: Op) {
        // No two things happen in the same millisecond: it is known which was first.
        self.pass(1);
        match op {
            Op::Pass(millis) => self.pass(millis),
            Op::Step(by) => self.set(by),
            Op::Delay(millis) => {
                let delay = Duration::from_millis(millis);
                let due = self.steady.due_after(self.wall(), self.counter, delay);
                let delay = Some((self.counter, delay));
                self.waiting.push(Waits { due, delay });
            }
            Op::At(from_now) => {
                let due = Timestamp::from_millis(self.wall.saturating_add_signed(from_now));
                self.waiting.push(Waits { due, delay: None });
            }
            Op::Restart(down, by) => {
                self.pass(down);
                self.set(by);
                let most = self.steady.most;
                self.steady = match self.kept {
                    Some(anchor) => Steady::resume(anchor),
                    None => Steady::new(self.wall(), self.counter),
                };
                self.steady = self.steady.clone().distrust(most);
                if let Some(last) = self.waiting.iter().map(|waits| waits.due).max() {
                    self.steady.rely(last);
                }
            }
        }
    }

    /// Fires what is due. Delays that end later than a step that was not believed for as long as may be, and began before
    /// it, may be early: they are left out.
    fn fire(&mut self) -> Result<(), TestCaseError> {
        let before = self.steady.ahead;
        let now = self.steady.observe(self.wall(), self.counter);
        self.kept = self.steady.changed().or(self.kept);
        prop_assert!(now <= self.wall());
        if let Some(ahead) = before
            && self.steady.ahead.is_none()
            && self.counter.saturating_sub(ahead.since) >= self.steady.most
        {
            self.waiting
                .retain(|waits| waits.delay.is_none_or(|(since, _)| since >= ahead.since));
        }
        let is_due = |waits: &mut Waits| waits.due <= now;
        let due: Vec<Waits> = self.waiting.extract_if(.., is_due).collect();
        for waits in due {
            prop_assert!(waits.due <= self.wall(), "{waits:?} at {}", self.wall());
            if let Some((since, delay)) = waits.delay {
                let waited = self.counter.saturating_sub(since);
                prop_assert!(
                    waited + TOLERANCE >= delay,
                    "{waits:?} fired after {waited:?}"
                );
            }
        }
        Ok(())
    }
}

/// A time when the wall clock is wrong.
#[derive(Clone, Copy, Debug)]
struct Excursion {
    by: i64,
    held: u64,
    right_for: u64,
}

fn excursion() -> impl Strategy<Value = Excursion> {
    let cut = |(by, part, right_for): (i64, f64, u64)| {
        // Ahead for a shorter time than it is ahead by; back for any time.
        let most = if by > 0 { by.min(3_600_000) } else { 7_200_000 };
        #[expect(clippy::cast_possible_truncation, reason = "a part of hours")]
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of hours")]
        let held = (most as f64 * part) as i64;
        Excursion {
            by,
            // A millisecond passes by itself.
            held: held.unsigned_abs().saturating_sub(1),
            right_for,
        }
    };
    (step(), 0.0..0.99, span()).prop_map(cut)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_delay_is_cut_short_whenever_the_clock_is_set(
        ops in prop::collection::vec(op(), 1..40),
        is_limited: bool,
    ) {
        let days = if is_limited { 1 } else { 24 * 100 };
        let mut world = World::new(Duration::from_hours(days));
        world.fire()?;
        for op in ops {
            world.apply(op);
            world.fire()?;
        }
    }

    #[test]
    fn while_the_clock_is_wrong_for_a_while_the_time_is_never_ahead_of_the_right_one(
        excursions in prop::collection::vec(excursion(), 1..10),
        delay in span(),
    ) {
        let mut world = World::new(DISTRUST);
        let began = world.wall - 5_000;
        for Excursion { by, held, right_for } in excursions {
            world.set(by);
            world.fire()?;
            // Delays decide when a step is believed; the other test is about when they end.
            world.apply(Op::Delay(delay));
            world.waiting.clear();
            for part in [held / 2, held - held / 2] {
                world.pass(part);
                let now = world.steady.observe(world.wall(), world.counter);
                let right = Timestamp::from_millis(began) + world.counter;
                prop_assert!(now.since(right) <= TOLERANCE, "{now} at {right}");
            }
            world.set(-by);
            world.fire()?;
            world.pass(right_for);
            world.fire()?;
        }
    }
}

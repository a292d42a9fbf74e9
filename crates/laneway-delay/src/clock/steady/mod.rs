use std::time::Duration;

use crate::Timestamp;
use crate::planted::planted;

/// Tells what to take for the time, from a wall clock that may be set and a counter that cannot be.
///
/// - The time is never ahead of the wall clock. When that is set back, the time goes back with it.
/// - A wall clock that is set ahead is not believed at once: the time goes on by the counter until the
///   step has held for as long as it was wide, and until the delays have ended that were counted before it, and for
///   [`DISTRUST`] at most. So a step ahead makes no delay early that ends within an hour of it, and a clock that was wrong by a
///   month and is put right is followed after an hour.
/// - A delay that is [counted](Self::due_after) while a step is not believed is on time whether the step holds or is taken back, if
///   it ends before the step can be believed. A longer one is counted from the wall clock: it is on time if the step holds, and late by the
///   width of the step if not.
/// - The way forward after a step back is such a step, too, if a delay was counted from the time in between. If
///   none was, it is believed at once.
///
/// Pure: both clocks come in as arguments.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::{Timestamp, clock::Steady};
///
/// let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
/// let since = Duration::from_secs;
/// let mut steady = Steady::new(at(1_000), since(0));
/// assert_eq!(steady.observe(at(1_010), since(10)), at(1_010));
/// // Set ahead by an hour: the next second is one second later.
/// assert_eq!(steady.observe(at(4_611), since(11)), at(1_011));
/// // Set back: nothing is due before its time by the wall clock.
/// assert_eq!(steady.observe(at(900), since(12)), at(900));
/// ```
#[derive(Clone, Debug)]
pub struct Steady {
    /// A moment of the wall clock that was believed, and the counter then.
    wall: Timestamp,
    counter: Duration,
    ahead: Option<Ahead>,
    back: Option<Back>,
    /// Until when delays last that were counted from this time.
    relied_until: Timestamp,
    /// The longest time for which a step ahead is not believed.
    most: Duration,
    has_changed: bool,
}

/// The wall clock was set ahead, and is not believed.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Since when, by the counter.
    since: Duration,
    /// By how much it was ahead all the time.
    width: Duration,
    /// By how much it is ahead.
    by: Duration,
    /// Until when delays last that were counted from the wall clock since.
    relied_until: Timestamp,
}

/// The wall clock was set back.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// By how much.
    width: Duration,
    /// Until when delays last that were counted since.
    relied_until: Timestamp,
}

/// What has to be known to go on after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) wall: Timestamp,
    pub(super) counter: Duration,
    /// Since when the wall clock is ahead, and by how much.
    pub(super) ahead: Option<(Duration, Duration)>,
}

/// The clocks are read one after the other, and one of them in whole milliseconds. Less than this is
/// no step.
const TOLERANCE: Duration = Duration::from_millis(20);

/// What is cut off by whole milliseconds.
const CUT_OFF: Duration = Duration::from_millis(1);

/// No delay was counted.
const NEVER: Timestamp = Timestamp::from_millis(0);

/// For how long a step ahead is not believed, at most, unless it is set otherwise.
pub const DISTRUST: Duration = Duration::from_hours(1);

impl Steady {
    /// Believes the wall clock as it is.
    #[must_use]
    pub fn new(wall: Timestamp, counter: Duration) -> Self {
        Self {
            wall,
            counter,
            ahead: None,
            back: None,
            relied_until: NEVER,
            most: DISTRUST,
            has_changed: true,
        }
    }

    /// Goes on where it was: the counter has not begun anew since. Which delays were counted has to be
    /// [told](Self::rely) again.
    pub(super) fn resume(anchor: Anchor) -> Self {
        let ahead = anchor.ahead.map(|(since, width)| Ahead {
            since,
            width,
            by: width,
            relied_until: NEVER,
        });
        Self {
            ahead,
            ..Self::new(anchor.wall, anchor.counter)
        }
    }

    /// As a process that is started anew finds it: what is kept of it, and until when delays last, which the store tells.
    #[doc(hidden)]
    #[must_use]
    pub fn restarted(&self) -> Self {
        let mut steady = Self::resume(self.anchor()).distrust(self.most);
        let since = self.ahead.map_or(NEVER, |ahead| ahead.relied_until);
        steady.rely(self.relied_until.max(since));
        steady
    }

    /// The same, with another limit on how long a step ahead is not believed.
    #[must_use]
    pub fn distrust(self, most: Duration) -> Self {
        Self { most, ..self }
    }

    /// By how much the wall clock was set ahead, while that is not believed.
    #[must_use]
    pub fn ahead(&self) -> Option<Duration> {
        self.ahead.map(|ahead| ahead.by)
    }

    /// A delay was counted from the time, and ends then.
    pub fn rely(&mut self, until: Timestamp) {
        self.relied_until = self.relied_until.max(until);
        if let Some(back) = &mut self.back {
            back.relied_until = back.relied_until.max(until);
        }
    }

    /// When a delay ends that begins now, and relies on that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use laneway_delay::{Timestamp, clock::Steady};
    ///
    /// let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
    /// let since = Duration::from_secs;
    /// let mut steady = Steady::new(at(1_000), since(0));
    /// let due = steady.due_after(at(1_000), since(0), since(50));
    /// // Set ahead by half a minute: when that has held for its width, it is not believed before the delay has ended.
    /// steady.observe(at(1_040), since(10));
    /// assert!(steady.observe(at(1_079), since(49)) < due);
    /// assert_eq!(steady.observe(at(1_081), since(51)), at(1_081));
    /// ```
    pub fn due_after(&mut self, wall: Timestamp, counter: Duration, delay: Duration) -> Timestamp {
        let now = self.observe(wall, counter).max(self.expected(counter));
        let due = now + CUT_OFF + delay;
        if let Some(ahead) = self.ahead
            && due > self.believed_at(ahead)
        {
            // The step may be believed before the delay has ended.
            let due = wall + CUT_OFF + delay;
            let relied_until = ahead.relied_until.max(due);
            self.ahead = Some(Ahead {
                relied_until,
                ..ahead
            });
            return due;
        }
        self.rely(due);
        due
    }

    /// What to keep, if it has changed since it was asked for.
    pub(super) fn changed(&mut self) -> Option<Anchor> {
        std::mem::take(&mut self.has_changed).then(|| self.anchor())
    }

    fn anchor(&self) -> Anchor {
        Anchor {
            wall: self.wall,
            counter: self.counter,
            ahead: self.ahead.map(|ahead| (ahead.since, ahead.width)),
        }
    }

    /// What to take for the time.
    pub fn observe(&mut self, wall: Timestamp, counter: Duration) -> Timestamp {
        let expected = self.expected(counter);
        let behind = expected.since(wall);
        if behind > TOLERANCE && !planted("delay-clock") {
            let back_ms = millis(behind);
            tracing::warn!(
                back_ms,
                "the wall clock was set back; what is due waits for it"
            );
            self.rely_on_step();
            let mut back = self.back.unwrap_or(Back {
                width: Duration::ZERO,
                relied_until: NEVER,
            });
            back.width += behind;
            self.believe(wall, counter);
            self.back = Some(back);
            return wall;
        }
        let by = wall.since(expected);
        if by <= TOLERANCE {
            if self.ahead.is_some() {
                self.rely_on_step();
                self.ahead = None;
                self.has_changed = true;
                tracing::info!("the wall clock is no longer ahead");
            }
            return wall;
        }
        let (ahead, is_new) = self.step(by, counter);
        self.ahead = Some(ahead);
        let believed_at = self.believed_at(ahead);
        if expected >= believed_at {
            tracing::warn!(ahead_ms = millis(by), "the wall clock is believed now");
            self.believe(wall, counter);
            return wall;
        }
        if is_new {
            let wait = believed_at.since(expected);
            tracing::warn!(
                ahead_ms = millis(by),
                ?wait,
                "the wall clock was set ahead, waiting before believing it"
            );
        }
        expected
    }

    /// What the time is by the counter.
    fn expected(&self, counter: Duration) -> Timestamp {
        let elapsed = millis(counter.saturating_sub(self.counter));
        Timestamp::from_millis(self.wall.as_millis().saturating_add(elapsed))
    }

    /// The step that the wall clock is ahead by, and whether it is another one than before.
    fn step(&mut self, by: Duration, counter: Duration) -> (Ahead, bool) {
        match self.ahead {
            Some(ahead) if by <= ahead.width + TOLERANCE => {
                let width = ahead.width.min(by);
                // A restart has to find a step that was set back in part: what it is set ahead by later is another one.
                self.has_changed |= ahead.width > width + TOLERANCE;
                (Ahead { width, by, ..ahead }, false)
            }
            // IMPORTANT: a step on top of a step begins anew, or it would be believed without having held, and make delays
            // early that were counted from the wall clock before it.
            _ => {
                self.rely_on_step();
                self.has_changed = true;
                let ahead = Ahead {
                    since: counter,
                    width: by,
                    by,
                    relied_until: NEVER,
                };
                (ahead, true)
            }
        }
    }

    /// From when on a step ahead is believed, by the time as it is without.
    fn believed_at(&self, ahead: Ahead) -> Timestamp {
        let began = self.expected(ahead.since);
        let held = began + ahead.width.min(self.most);
        let at = held.max(self.relied_until).min(began + self.most);
        match self.back {
            // The way forward.
            Some(back) if ahead.by <= back.width + TOLERANCE => at.min(back.relied_until),
            _ => at,
        }
    }

    /// The step is over in one way or another: to the next one, delays that were counted during it are delays like others.
    fn rely_on_step(&mut self) {
        if let Some(ahead) = self.ahead {
            self.rely(ahead.relied_until);
        }
    }

    fn believe(&mut self, wall: Timestamp, counter: Duration) {
        self.rely_on_step();
        *self = Self {
            relied_until: self.relied_until,
            ..Self::new(wall, counter).distrust(self.most)
        };
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod property;

#[cfg(test)]
mod tests;

//! What happens to a group, in an order that dice choose.

use std::fmt;
use std::time::Duration;

use rand::seq::SliceRandom;
use rand::{Rng, RngExt};

use super::super::Broker;

/// So many members there are at most.
pub(super) const MOST: usize = 4;
/// The topic of orders has one of these numbers of partitions when it is made.
pub(super) const SHAPES: [u32; 4] = [8, 3, 12, 5];

#[derive(Clone, Debug)]
pub(super) enum Step {
    Join,
    Waver(u64),
    Leave(usize),
    Kill(usize),
    Freeze(usize, Duration),
    Cut(usize, Duration),
    Server(Duration),
    Leaderless,
    Strangers(u64),
    Release,
    Grow(u32),
    Remake(u32),
    Forget,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join => f.write_str("one joins"),
            Self::Waver(_) => f.write_str("one joins that gives up several times first"),
            Self::Leave(place) => write!(f, "member {} leaves", place + 1),
            Self::Kill(place) => write!(f, "kill -9 member {}, another one joins", place + 1),
            Self::Freeze(place, time) => write!(f, "freeze member {} for {time:?}", place + 1),
            Self::Cut(place, time) => {
                write!(
                    f,
                    "cut member {} off for {time:?}, and let it fail",
                    place + 1
                )
            }
            Self::Server(away) => write!(f, "kill -9 the server, start it {away:?} later"),
            Self::Leaderless => f.write_str("some partitions have no leader for a while"),
            Self::Strangers(_) => f.write_str("strangers publish"),
            Self::Release => f.write_str("another process releases all parked keys"),
            Self::Grow(partitions) => write!(
                f,
                "topics grow, one to {partitions} partitions, with keys that are parked"
            ),
            Self::Remake(partitions) => {
                write!(f, "the topic is made anew with {partitions} partitions")
            }
            Self::Forget => {
                f.write_str("the broker forgets the group while nobody reads what is published")
            }
        }
    }
}

/// Draws rounds. Each has every kind of step that the broker allows once, in any order.
pub(super) struct Planner {
    there: usize,
    partitions: u32,
    rounds: usize,
    lease: u64,
}

impl Planner {
    /// For a group of so many members, which may be silent for `lease` milliseconds.
    pub(super) fn new(there: usize, lease: u64) -> Self {
        Self {
            there,
            partitions: SHAPES[0],
            rounds: 0,
            lease,
        }
    }

    pub(super) fn round<B: Broker>(&mut self, dice: &mut impl Rng) -> Vec<Step> {
        let mut kinds: Vec<usize> = (0..13).collect();
        kinds.shuffle(dice);
        self.rounds += 1;
        let steps = kinds.into_iter();
        steps
            .filter_map(|kind| self.step::<B>(dice, kind))
            .collect()
    }

    fn step<B: Broker>(&mut self, dice: &mut impl Rng, kind: usize) -> Option<Step> {
        let lease = self.lease;
        let victim = dice.random_range(0..self.there);
        let long = Duration::from_millis(dice.random_range(3 * lease / 2..2 * lease));
        let short = Duration::from_millis(dice.random_range(0..lease));
        Some(match kind {
            0 | 1 if self.there < MOST => {
                self.there += 1;
                if kind == 0 {
                    Step::Join
                } else {
                    Step::Waver(dice.random())
                }
            }
            0..=2 if self.there > 1 => {
                self.there -= 1;
                Step::Leave(victim)
            }
            3 => Step::Kill(victim),
            4 => Step::Freeze(victim, long),
            5 => Step::Cut(victim, if dice.random_bool(0.7) { long } else { short }),
            6 => Step::Server(short),
            7 => Step::Strangers(dice.random()),
            8 => {
                self.partitions *= 2;
                Step::Grow(self.partitions)
            }
            9 => {
                self.partitions = SHAPES[self.rounds % SHAPES.len()];
                Step::Remake(self.partitions)
            }
            10 if B::FORGETS => Step::Forget,
            11 if B::LOSES_LEADERS => Step::Leaderless,
            12 => Step::Release,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::nats::Nats;

    #[test]
    fn somebody_is_always_there() {
        for seed in 0..200 {
            let mut there = 2_usize;
            let mut dice = StdRng::seed_from_u64(seed);
            let mut planner = Planner::new(there, 1000);
            for step in (0..8).flat_map(|_| planner.round::<Nats>(&mut dice)) {
                match step {
                    Step::Join | Step::Waver(_) => there += 1,
                    Step::Leave(place) => {
                        assert!(place < there);
                        there -= 1;
                    }
                    Step::Kill(place) | Step::Freeze(place, _) | Step::Cut(place, _) => {
                        assert!(place < there);
                    }
                    _ => {}
                }
                assert!((1..=MOST).contains(&there));
            }
        }
    }
}

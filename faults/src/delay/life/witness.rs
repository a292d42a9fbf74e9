//! The receiver of all messages, callbacks and events: it writes down what comes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use laneway_delay::{
    BoxFuture, Deliver, Failure, Firing, Publish, Sinks, State, Timestamp, Undelivered,
};

/// A delivery that was started.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) id: String,
    /// Which submission of this id it is of.
    pub(super) tag: u64,
    pub(super) due: Timestamp,
    pub(super) since: Timestamp,
}

/// Of one life. All lives write into the same list.
#[derive(Clone)]
pub(super) struct Witness {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Attempts of these that come next give no answer.
    silent: Arc<Mutex<HashSet<u64>>>,
    /// Pairs of events that came in a wrong order.
    disorder: Arc<Mutex<Vec<[String; 2]>>>,
    /// How many batches of events came.
    batches: Arc<AtomicU64>,
    is_alive: Arc<AtomicBool>,
}

/// What this one gets never arrives: it becomes a dead letter.
pub(super) fn is_refused(tag: u64) -> bool {
    tag % 7 == 3
}

/// A payload that tells which submission it is of.
pub(super) fn payload(tag: u64, size: usize) -> Vec<u8> {
    let mut payload = tag.to_le_bytes().to_vec();
    // Hardly to be made smaller, so that it takes room in files.
    let mut noise = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while payload.len() < size {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        payload.extend_from_slice(&noise.to_le_bytes());
    }
    payload.truncate(size.max(8));
    payload
}

impl Witness {
    pub(super) fn new() -> Self {
        Self {
            seen: Arc::default(),
            silent: Arc::default(),
            disorder: Arc::default(),
            batches: Arc::default(),
            is_alive: Arc::new(AtomicBool::new(true)),
        }
    }

    /// The next life.
    pub(super) fn next(&self) -> Self {
        Self {
            is_alive: Arc::new(AtomicBool::new(true)),
            ..self.clone()
        }
    }

    /// The next attempt of this one gives no answer.
    pub(super) fn stay_silent(&self, tag: u64) {
        locked(&self.silent).insert(tag);
    }

    /// Pairs of events that came in a wrong order since it was asked last.
    pub(super) fn disorder(&self) -> Vec<[String; 2]> {
        std::mem::take(&mut *locked(&self.disorder))
    }

    /// Nothing of this life counts any more.
    pub(super) fn die(&self) {
        self.is_alive.store(false, Ordering::SeqCst);
    }

    pub(super) fn sinks(&self) -> Sinks {
        Sinks {
            callbacks: Some(Arc::new(self.clone())),
            bus: Some(Arc::new(self.clone())),
        }
    }

    /// How many deliveries were started.
    pub(super) fn len(&self) -> usize {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Those from a number on.
    pub(super) fn since(&self, from: usize) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen[from.min(seen.len())..].to_vec()
    }
}

fn locked<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a process that is gone takes over an attempt: long enough not to turn in circles.
const GONE: Duration = Duration::from_millis(20);

/// What becomes of an attempt of a process that is gone: nothing that is noted. Were it a failure, it could be on the disk that
/// is left, and a message that was never tried would die of two of them.
fn gone() -> Undelivered {
    Undelivered::new(Failure::Unavailable(GONE), "the process is gone")
}

impl Witness {
    /// Writes an attempt down and answers it; `None` if the process is gone.
    fn take(&self, firing: &Firing) -> Option<Result<(), Undelivered>> {
        let message = &firing.message;
        let tag = message.payload.first_chunk::<8>().copied();
        let tag = u64::from_le_bytes(tag.unwrap_or_default());
        let State::Firing { since } = message.record.state() else {
            return Some(Err(Undelivered::retry("it does not fire")));
        };
        {
            let mut seen = locked(&self.seen);
            if !self.is_alive.load(Ordering::SeqCst) {
                return None;
            }
            seen.push(Seen {
                id: message.id.to_string(),
                tag,
                due: message.record.due(),
                since,
            });
        }
        Some(if locked(&self.silent).remove(&tag) {
            Err(Undelivered::unknown("no answer"))
        } else if is_refused(tag) {
            Err(Undelivered::permanent("never"))
        } else {
            Ok(())
        })
    }
}

impl Deliver for Witness {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            let Some(answer) = self.take(&firing) else {
                tokio::time::sleep(GONE).await;
                return Err(gone());
            };
            answer
        })
    }
}

impl Publish for Witness {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(async move {
            // Now and then the bus is away: it certainly took nothing.
            let number = self.batches.fetch_add(1, Ordering::SeqCst);
            if number % 13 == 5 {
                return vec![Err(Undelivered::retry("the bus is away")); batch.len()];
            }
            for pair in batch.windows(2) {
                let [first, second] = [&pair[0], &pair[1]];
                // One that was submitted when the other was due already comes after it.
                if second.due() < first.due() && second.message.accepted < first.due() {
                    let pair = [first, second].map(|firing| firing.message.id.to_string());
                    locked(&self.disorder).push(pair);
                }
            }
            let mut answers = Vec::new();
            for firing in &batch {
                let Some(answer) = self.take(firing) else {
                    tokio::time::sleep(GONE).await;
                    return vec![Err(gone()); batch.len()];
                };
                answers.push(answer);
            }
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use laneway_delay::When;
    use laneway_delay::clock::Clock;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::super::world::World;
    use super::*;

    #[tokio::test]
    async fn attempts_of_a_process_that_is_gone_count_for_nothing() {
        let mut world = World::begin(StdRng::seed_from_u64(1)).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..4 {
            let soon = When::At(world.clock.now() + Duration::from_secs(1));
            ids.push(world.submit_one(soon).await.0);
        }
        world.witness.die();
        for _ in 0..6 {
            world.clock.pass(2_000);
            tokio::time::sleep(2 * GONE).await;
        }
        for id in ids {
            let message = world.delays.get(&World::id(&id)).await.unwrap();
            assert!(!message.record.state().is_final(), "{message:?}");
            assert_eq!(message.record.failures(), 0, "{message:?}");
        }
        assert_eq!(world.witness.len(), 0);
    }
}

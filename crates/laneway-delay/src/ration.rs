//! How often something is said: what happens a thousand times a second is not told a thousand times.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const WINDOW: Duration = Duration::from_secs(1);

/// Lets so many through in a second, and counts the others.
#[derive(Debug)]
pub(crate) struct Ration {
    per_second: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    let_through: u32,
    left_out: u64,
}

impl Ration {
    pub(crate) const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            state: Mutex::new(State {
                since: None,
                let_through: 0,
                left_out: 0,
            }),
        }
    }

    /// Whether this one is let through; if so, how many were left out since the last one that was.
    pub(crate) fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if state.since.is_none_or(is_over) {
            state.since = Some(now);
            state.let_through = 0;
        }
        if state.let_through == self.per_second {
            state.left_out += 1;
            return None;
        }
        state.let_through += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_let_through_in_a_second_and_the_others_are_counted() {
        let ration = Ration::new(2);
        let now = Instant::now();
        let takes: Vec<_> = (0..5).map(|_| ration.take_at(now)).collect();
        assert_eq!(takes, [Some(0), Some(0), None, None, None]);
        assert_eq!(ration.take_at(now + WINDOW), Some(3));
        assert_eq!(ration.take_at(now + WINDOW), Some(0));
    }
}

use std::thread;
use std::time::{Duration, Instant};

/// A point in time after which waiting is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    const POLL: Duration = Duration::from_millis(25);

    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    pub(crate) fn passed(self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Asks until there is an answer or the time is over.
    pub(crate) fn poll<T>(self, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            if let Some(answer) = ask() {
                return Some(answer);
            }
            if self.passed() {
                return None;
            }
            thread::sleep(Self::POLL.min(self.left()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_ends_with_the_first_answer() {
        let mut asked = 0;
        let answer = Deadline::after(Duration::from_mins(1)).poll(|| {
            asked += 1;
            (asked == 3).then_some("yes")
        });
        assert_eq!(answer, Some("yes"));
    }

    #[test]
    fn polling_asks_once_even_when_the_time_is_over() {
        assert_eq!(Deadline::after(Duration::ZERO).poll(|| Some(1)), Some(1));
        assert_eq!(Deadline::after(Duration::ZERO).poll(|| None::<u8>), None);
    }
}

//! How the tests of Laneway wait for something to be so: they look again and again, until a deadline that a busy
//! machine keeps, and a test that has waited in vain says for what.
//!
//! [`wait_for!`] is for tasks, [`wait_for_blocking!`] for threads without a runtime, or with one whose threads may be
//! blocked:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use waiting::wait_for;
//!
//! let (sender, receiver) = std::sync::mpsc::channel();
//! tokio::spawn(async move { sender.send(7) });
//! wait_for!(receiver.try_recv() == Ok(7));
//! wait_for!(receiver.try_recv().is_err(), "{} is gone", "the sender");
//! # }
//! ```

use std::fmt::Display;
use std::time::{Duration, Instant};

/// So long a test waits. It is real time, also where the clock of the runtime is paused: what is waited for may be on
/// another thread.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits in a task until an expression, which may `.await`, is true. The test fails after two minutes, and says the
/// expression, or what follows it: `wait_for!(lag.is_empty(), "group {group} is done")`.
#[macro_export]
macro_rules! wait_for {
    ($is_so:expr $(,)?) => {
        $crate::wait_for!($is_so, "{}", stringify!($is_so))
    };
    ($is_so:expr, $($what:tt)+) => {{
        let waiting = $crate::Waiting::default();
        while !$is_so {
            waiting.check(&format_args!($($what)+));
            $crate::pause().await;
        }
    }};
}

/// Waits on this thread until an expression is true, as [`wait_for!`] does in a task. Answers how long that took.
#[macro_export]
macro_rules! wait_for_blocking {
    ($is_so:expr $(,)?) => {
        $crate::wait_for_blocking!($is_so, "{}", stringify!($is_so))
    };
    ($is_so:expr, $($what:tt)+) => {{
        let waiting = $crate::Waiting::default();
        while !$is_so {
            waiting.check(&format_args!($($what)+));
            $crate::pause_blocking();
        }
        waiting.elapsed()
    }};
}

/// How long a test has waited.
#[derive(Debug)]
pub struct Waiting(Instant);

impl Default for Waiting {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Waiting {
    /// Goes on if there is time left.
    ///
    /// # Panics
    /// When there is none, saying what was waited for.
    #[track_caller]
    pub fn check(&self, what: &dyn Display) {
        assert!(
            self.0.elapsed() < PATIENCE,
            "waited for {PATIENCE:?} until {what}"
        );
    }

    /// How long it was.
    #[expect(
        clippy::must_use_candidate,
        reason = "most tests do not look how long they waited"
    )]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits before the next look.
pub async fn pause() {
    tokio::time::sleep(PAUSE).await;
}

/// The same, on a thread.
pub fn pause_blocking() {
    std::thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_becomes_so_is_seen() {
        let mut looks = 0;
        wait_for!({
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        wait_for!(async { true }.await, "it is {}", "so");
        assert!(wait_for_blocking!(looks == 3) < PATIENCE);
    }

    #[test]
    #[should_panic(expected = "waited for 120s until the moon is new")]
    fn what_never_becomes_so_is_said() {
        let long_ago = Instant::now().checked_sub(PATIENCE + PAUSE);
        Waiting(long_ago.expect("a machine that was not just started")).check(&"the moon is new");
    }
}

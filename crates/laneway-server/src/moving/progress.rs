//! How far a move is, for people.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often it is told on a terminal, and elsewhere.
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(5);

/// Tells on standard error how far it is.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    total: u64,
    done: u64,
    began: Instant,
    told: Instant,
    every: Option<Duration>,
    is_terminal: bool,
}

impl Progress {
    /// `is_silent`: nothing is told. `is_detailed`: each step is.
    pub(super) fn new(what: &'static str, total: u64, is_silent: bool, is_detailed: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let every = match (is_silent, is_detailed) {
            (true, _) => None,
            (_, true) => Some(Duration::ZERO),
            _ if is_terminal => Some(ON_TERMINAL),
            _ => Some(ELSEWHERE),
        };
        let now = Instant::now();
        Self {
            what,
            total,
            done: 0,
            began: now,
            told: now,
            every,
            is_terminal,
        }
    }

    /// So many more are done.
    pub(super) fn add(&mut self, count: usize) {
        self.done += count as u64;
        if self.every.is_some_and(|every| self.told.elapsed() >= every) {
            self.told = Instant::now();
            let line = self.line();
            let (before, after) = if self.is_terminal {
                ("\r", "\x1b[K")
            } else {
                ("", "\n")
            };
            let _ = write!(std::io::stderr(), "{before}{line}{after}");
        }
    }

    /// Leaves the line that was told.
    pub(super) fn end(&self) {
        if self.every.is_some() && self.is_terminal {
            let _ = writeln!(std::io::stderr(), "\r{}\x1b[K", self.line());
        }
    }

    fn line(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
        let rate = self.done as f64 / seconds;
        let percent = (self.done.saturating_mul(100))
            .checked_div(self.total)
            .unwrap_or(100);
        format!(
            "{}: {} of {} ({}%), {rate:.0}/s",
            self.what,
            self.done,
            self.total,
            percent.min(100)
        )
    }
}

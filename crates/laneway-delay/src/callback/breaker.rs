//! One circuit, pure: it takes the time as an argument.
//!
//! ```text
//!            n failures in a row                 the wait is over
//!   closed ──────────────────────►  open  ──────────────────────────►  probing
//!     ▲                              ▲                                   │  │
//!     │                              └────── failed: twice the wait ─────┘  │
//!     └──────────────────────────────────── succeeded ──────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) failures_to_open: u32,
    pub(super) first_wait: Duration,
    pub(super) longest_wait: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, wait: Duration },
    Probing { wait: Duration },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Whether a call may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may.
    Go,
    /// It may, and its result decides for all others.
    Probe,
    /// Not now. Perhaps after this time.
    Wait(Duration),
}

impl Breaker {
    pub(super) fn admit(&mut self, now: Instant, policy: &Policy) -> Admission {
        if let Some(wait) = self.wait(now, policy) {
            return Admission::Wait(wait);
        }
        match self.state {
            State::Open { wait, .. } | State::Probing { wait } => {
                self.state = State::Probing { wait };
                Admission::Probe
            }
            State::Closed { .. } => Admission::Go,
        }
    }

    /// How long a caller has to wait now; `None` if it may go. Changes nothing.
    pub(super) fn wait(&self, now: Instant, policy: &Policy) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until, .. } => {
                Some(until.duration_since(now)).filter(|wait| !wait.is_zero())
            }
            // The probe is on its way, and how long its answer takes is not known.
            State::Probing { .. } => Some(policy.first_wait),
        }
    }

    /// It works, late or not. Answers whether it was open.
    pub(super) fn succeeded(&mut self) -> bool {
        let was_open = !matches!(self.state, State::Closed { .. });
        self.state = State::default();
        was_open
    }

    /// Answers whether it opened just now, and for how long.
    pub(super) fn failed(&mut self, now: Instant, policy: &Policy) -> Option<Duration> {
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures >= policy.failures_to_open {
                    self.open(now, policy.first_wait);
                    return Some(policy.first_wait);
                }
            }
            State::Probing { wait } => {
                let wait = wait.saturating_mul(2).min(policy.longest_wait);
                self.open(now, wait);
            }
            // One that was sent before the circuit opened. It says nothing new.
            State::Open { .. } => {}
        }
        None
    }

    /// A probe that ended without a result. The next one may try.
    pub(super) fn abandoned(&mut self, now: Instant) {
        if let State::Probing { wait } = self.state {
            self.state = State::Open { until: now, wait };
        }
    }

    /// Whether forgetting it would lose nothing.
    pub(super) fn is_pristine(&self) -> bool {
        matches!(self.state, State::Closed { failures: 0 })
    }

    /// Whether nothing is let through now. One whose wait is over lets a probe through.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => false,
            State::Open { until, .. } => now < until,
            State::Probing { .. } => true,
        }
    }

    fn open(&mut self, now: Instant, wait: Duration) {
        self.state = State::Open {
            until: now + wait,
            wait,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        failures_to_open: 3,
        first_wait: Duration::from_secs(5),
        longest_wait: Duration::from_secs(15),
    };

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            assert_eq!(breaker.admit(now, &POLICY), Admission::Go);
            breaker.failed(now, &POLICY);
        }
        breaker
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(now, &POLICY);
            breaker.failed(now, &POLICY);
            breaker.succeeded();
        }
        assert_eq!(breaker.admit(now, &POLICY), Admission::Go);
        assert_eq!(opened(now).admit(now, &POLICY), Admission::Wait(secs(5)));
    }

    #[test]
    fn one_probe_goes_out_and_decides() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + secs(5);
        assert_eq!(
            breaker.admit(now + Duration::from_millis(4_999), &POLICY),
            Admission::Wait(Duration::from_millis(1))
        );
        assert_eq!(breaker.admit(later, &POLICY), Admission::Probe);
        assert_eq!(
            breaker.admit(later, &POLICY),
            Admission::Wait(secs(5)),
            "one at a time"
        );
        breaker.succeeded();
        assert_eq!(breaker.admit(later, &POLICY), Admission::Go);
        assert!(breaker.is_pristine());
    }

    #[test]
    fn it_counts_as_open_until_its_wait_is_over() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert!(breaker.is_open(now) && !breaker.is_open(now + secs(5)));
        assert_eq!(breaker.admit(now + secs(5), &POLICY), Admission::Probe);
        assert!(breaker.is_open(now + secs(5)), "but for the probe");
        assert!(breaker.succeeded() && !breaker.succeeded());
    }

    #[test]
    fn failed_probes_double_the_wait_up_to_the_longest() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for wait in [5, 10, 15, 15] {
            assert_eq!(breaker.admit(now, &POLICY), Admission::Wait(secs(wait)));
            now += secs(wait);
            assert_eq!(breaker.admit(now, &POLICY), Admission::Probe);
            breaker.failed(now, &POLICY);
        }
    }

    #[test]
    fn a_late_failure_changes_nothing_and_a_late_success_closes() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.failed(now + secs(4), &POLICY);
        assert_eq!(
            breaker.admit(now + secs(4), &POLICY),
            Admission::Wait(secs(1))
        );
        breaker.succeeded();
        assert_eq!(breaker.admit(now + secs(4), &POLICY), Admission::Go);
    }

    #[test]
    fn an_abandoned_probe_lets_the_next_one_try() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + secs(5);
        assert_eq!(breaker.admit(later, &POLICY), Admission::Probe);
        breaker.abandoned(later);
        assert_eq!(breaker.admit(later, &POLICY), Admission::Probe);
    }
}

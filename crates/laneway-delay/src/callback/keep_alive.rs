//! Which connections are kept for the next call.
//!
//! The pool of the HTTP client knows how many connections to keep for each host, and not for all hosts
//! together. So each host has an allowance here, as large as the number of its calls that ever ran at once, and all
//! allowances together have a bound. A call within the allowance of its host uses the pool, and leaves at most
//! one connection there; one beyond it has a connection of its own, which is closed at its end. An allowance
//! ends when its host was not called for so long that the pool has closed its connections.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};

/// What the pool is told. It looks this often for connections that are idle for this long, so they are closed
/// within twice this time.
pub(super) const IDLE: Duration = Duration::from_secs(15);

/// When the pool has closed them for sure.
const CLOSED_AFTER: Duration = Duration::from_secs(35);

#[derive(Debug)]
pub(super) struct KeepAlive {
    bound: usize,
    allowances: Mutex<Allowances>,
}

#[derive(Debug, Default)]
struct Allowances {
    by_host: HashMap<String, Allowance>,
    /// When a look at each of them is worth it.
    by_age: VecDeque<(Instant, String)>,
    sum: usize,
}

#[derive(Debug)]
struct Allowance {
    calls: usize,
    running: usize,
    used: Instant,
}

/// A call whose connection may be kept.
#[derive(Debug)]
pub(super) struct KeptConnection<'a> {
    keep: &'a KeepAlive,
    host: &'a str,
}

impl KeepAlive {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            allowances: Mutex::default(),
        }
    }

    fn allowances(&self) -> MutexGuard<'_, Allowances> {
        self.allowances.lock()
    }

    /// A call begins. `None`: its connection may not be kept.
    pub(super) fn enter<'a>(&'a self, host: &'a str) -> Option<KeptConnection<'a>> {
        self.enter_at(host, Instant::now())
    }

    fn enter_at<'a>(&'a self, host: &'a str, now: Instant) -> Option<KeptConnection<'a>> {
        let mut all = self.allowances();
        all.expire(now);
        let can_grow = all.sum < self.bound;
        if let Some(allowance) = all.by_host.get_mut(host) {
            let grows = allowance.running == allowance.calls;
            if grows && !can_grow {
                return None;
            }
            allowance.calls += usize::from(grows);
            allowance.running += 1;
            allowance.used = now;
            all.sum += usize::from(grows);
        } else {
            if !can_grow {
                return None;
            }
            let allowance = Allowance {
                calls: 1,
                running: 1,
                used: now,
            };
            all.by_host.insert(host.to_owned(), allowance);
            all.by_age.push_back((now, host.to_owned()));
            all.sum += 1;
        }
        Some(KeptConnection { keep: self, host })
    }
}

impl Allowances {
    fn expire(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= CLOSED_AFTER;
        // Two for each call: more than come in.
        for _ in 0..2 {
            let Some((_, host)) = self.by_age.pop_front_if(|(at, _)| is_old(*at)) else {
                return;
            };
            match self.by_host.get(&host) {
                Some(allowance) if allowance.running == 0 && is_old(allowance.used) => {
                    self.sum -= allowance.calls;
                    self.by_host.remove(&host);
                }
                Some(allowance) if allowance.running == 0 => {
                    self.by_age.push_back((allowance.used, host));
                }
                Some(_) => self.by_age.push_back((now, host)),
                None => {}
            }
        }
    }
}

impl Drop for KeptConnection<'_> {
    fn drop(&mut self) {
        if let Some(allowance) = self.keep.allowances().by_host.get_mut(self.host) {
            allowance.running -= 1;
            allowance.used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hosts_together_keep_no_more_than_the_bound() {
        let keep = KeepAlive::new(3);
        let now = Instant::now();
        let first = keep.enter_at("a", now).expect("room");
        let second = keep.enter_at("a", now).expect("room");
        assert!(keep.enter_at("b", now).is_some());
        assert!(keep.enter_at("c", now).is_none());
        assert!(keep.enter_at("a", now).is_none(), "a third at once");
        drop(first);
        assert!(keep.enter_at("a", now).is_some(), "within its allowance");
        assert!(keep.enter_at("c", now).is_none(), "b may have one");
        drop(second);
        // Once the pool has closed them there is room again.
        let later = Instant::now() + CLOSED_AFTER;
        assert!(keep.enter_at("c", later).is_some());
        assert_eq!(keep.allowances().by_host.len(), 1);
    }

    #[test]
    fn allowances_of_hosts_that_are_called_no_more_end() {
        let keep = KeepAlive::new(100);
        let now = Instant::now();
        for number in 0..100 {
            drop(keep.enter_at(&number.to_string(), now));
        }
        assert!(keep.enter_at("other", now).is_none());
        let later = Instant::now() + CLOSED_AFTER;
        for number in 0..1000 {
            drop(keep.enter_at(&format!("new-{}", number % 7), later));
        }
        assert_eq!(keep.allowances().by_host.len(), 7);
        assert_eq!(keep.allowances().sum, 7);
    }
}

//! Slots, queue and circuit of each host.
//!
//! Every host has its own slots. Who finds none free waits in line behind the others of that host,
//! first come, first served, and holds nothing that anybody else needs. A line that is too long,
//! or an open circuit, turns a call away at once; it comes back later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::breaker::{Admission, Breaker, Policy};
use super::trouble::Trouble;

/// How much of this server callbacks can hold, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How long a call may take where the message does not say: from looking up the name to the
    /// head of the answer.
    pub timeout: Duration,
    /// The longest time that a message can ask for.
    pub max_timeout: Duration,
    /// Calls to one host at the same time.
    pub per_host: usize,
    /// Calls to one host that wait for a slot. Further ones are postponed.
    pub waiting_per_host: usize,
    /// Calls at the same time over all hosts.
    pub total: usize,
    /// Failures in a row after which nothing is sent to a host for a while.
    pub failures_to_open: u32,
    /// The first such while. It doubles with each probe that fails.
    pub open_for: Duration,
    /// The longest such while.
    pub open_for_at_most: Duration,
    /// How far past its due time a message is still put off for an open circuit.
    pub max_postponed: Duration,
    /// The longest `Retry-After` that is respected.
    pub max_retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            max_timeout: Duration::from_mins(5),
            per_host: 64,
            waiting_per_host: 1_024,
            total: 1_024,
            failures_to_open: 10,
            open_for: Duration::from_secs(5),
            open_for_at_most: Duration::from_mins(1),
            max_postponed: Duration::from_hours(1),
            max_retry_after: Duration::from_hours(1),
        }
    }
}

impl Limits {
    fn policy(&self) -> Policy {
        Policy {
            failures_to_open: self.failures_to_open,
            first_wait: self.open_for,
            longest_wait: self.open_for_at_most,
        }
    }
}

/// Above this many hosts, those that nothing is known of are forgotten.
const REMEMBERED: usize = 4_096;

#[derive(Debug)]
pub(super) struct Hosts {
    limits: Limits,
    /// Over all hosts. Taken last, so that who waits for a host holds none of it.
    total: Arc<Semaphore>,
    by_name: Mutex<HashMap<String, Arc<Host>>>,
}

#[derive(Debug)]
struct Host {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    breaker: Mutex<Breaker>,
}

/// The right to make one call. Dropping it without a result counts as neither.
#[derive(Debug)]
pub(super) struct Pass {
    host: Arc<Host>,
    policy: Policy,
    probe: bool,
    done: bool,
    _slots: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Hosts {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            total: Arc::new(Semaphore::new(limits.total)),
            by_name: Mutex::default(),
        }
    }

    /// Waits for a turn with this host.
    pub(super) async fn enter(&self, name: &str) -> Result<Pass, Trouble> {
        let host = self.host(name);
        let policy = self.limits.policy();
        // Before waiting too: nobody should stand in line for a host that is down.
        if let Some(wait) = host.breaker().wait(Instant::now(), &policy) {
            return Err(open(name, wait));
        }
        let slots = self.slots(&host, name).await?;
        let admission = host.breaker().admit(Instant::now(), &policy);
        let probe = match admission {
            Admission::Go => false,
            Admission::Probe => true,
            Admission::Wait(wait) => return Err(open(name, wait)),
        };
        Ok(Pass {
            host,
            policy,
            probe,
            done: false,
            _slots: slots,
        })
    }

    async fn slots(
        &self,
        host: &Host,
        name: &str,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Trouble> {
        let mine = if let Ok(slot) = Arc::clone(&host.slots).try_acquire_owned() {
            slot
        } else {
            let _line =
                Line::join(&host.waiting, self.limits.waiting_per_host).ok_or_else(|| {
                    Trouble::Busy {
                        host: name.to_owned(),
                        wait: spread(Duration::from_secs(1)),
                    }
                })?;
            acquire(&host.slots).await?
        };
        Ok((mine, acquire(&self.total).await?))
    }

    fn host(&self, name: &str) -> Arc<Host> {
        let mut hosts = lock(&self.by_name);
        if let Some(host) = hosts.get(name) {
            return Arc::clone(host);
        }
        if hosts.len() >= REMEMBERED {
            hosts.retain(|_, host| Arc::strong_count(host) > 1 || !host.breaker().is_pristine());
        }
        let host = Arc::new(Host {
            slots: Arc::new(Semaphore::new(self.limits.per_host)),
            waiting: AtomicUsize::new(0),
            breaker: Mutex::default(),
        });
        hosts.insert(name.to_owned(), Arc::clone(&host));
        host
    }

    /// How many hosts have an open circuit.
    pub(super) fn open_circuits(&self) -> usize {
        let hosts = lock(&self.by_name);
        hosts
            .values()
            .filter(|host| !host.breaker().is_closed())
            .count()
    }
}

impl Host {
    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        lock(&self.breaker)
    }
}

impl Pass {
    /// Says how the call ended, as far as the host is concerned.
    pub(super) fn finish(mut self, healthy: bool) {
        self.done = true;
        let mut breaker = self.host.breaker();
        if healthy {
            breaker.succeeded();
        } else {
            breaker.failed(Instant::now(), &self.policy);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.probe && !self.done {
            self.host.breaker().abandoned(Instant::now());
        }
    }
}

/// A place in the line of a host.
struct Line<'a>(&'a AtomicUsize);

impl<'a> Line<'a> {
    fn join(waiting: &'a AtomicUsize, most: usize) -> Option<Self> {
        let line = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < most).then_some(line)
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn acquire(slots: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Trouble> {
    let slot = Arc::clone(slots).acquire_owned().await;
    slot.map_err(|closed| Trouble::Invalid(closed.to_string()))
}

fn open(host: &str, wait: Duration) -> Trouble {
    Trouble::CircuitOpen {
        host: host.to_owned(),
        wait: Some(spread(wait)),
    }
}

/// Somewhere between the wait and its double, so that those who were turned away together do not
/// come back together.
fn spread(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..2.0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Which hosts have circuits now, and what is remembered of those that failed.
//!
//! A call asks for a permit; an open circuit refuses it at once, and the message comes back later. How many calls run
//! at once is not decided here but by the engine, which knows what waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::Limits;
use super::circuits::{Admitted, CircuitOpen, Circuits};
use super::error::{CallError, HostHealth};

/// How many hosts that failed are remembered.
const REMEMBERED: usize = 65_536;
/// For how long a host is remembered after it failed.
const REMEMBERED_FOR: Duration = Duration::from_mins(10);

/// The circuits of all hosts.
#[derive(Debug)]
pub(super) struct HostCircuits {
    limits: Limits,
    known: Arc<Mutex<KnownHosts>>,
}

/// Hosts that are called now, and those that failed a while ago. The others have nothing that is worth
/// to be remembered.
#[derive(Debug, Default)]
struct KnownHosts {
    by_name: HashMap<String, Arc<Host>>,
    /// Those that failed, by when a look at them is worth it.
    by_age: VecDeque<(Instant, String)>,
}

#[derive(Debug)]
struct Host {
    circuits: Mutex<Circuits>,
    /// Whether it is in the list by age.
    is_noted: AtomicBool,
}

/// A host while a call uses it. Dropping the last one forgets a host that has nothing to remember.
#[derive(Debug)]
struct HostRef {
    known: Arc<Mutex<KnownHosts>>,
    host: Arc<Host>,
    name: String,
}

/// The right to make one call. Dropping it without [`finish`](Self::finish) counts neither for nor against the host.
#[derive(Debug)]
pub(super) struct CallPermit {
    host: HostRef,
    admitted: Admitted,
    health: HostHealth,
}

impl HostCircuits {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            known: Arc::default(),
        }
    }

    /// A permit to call this host for a message of this topic, unless a circuit is open.
    pub(super) fn permit(&self, name: &str, topic: &str) -> Result<CallPermit, CallError> {
        let host = self.host(name);
        let policy = self.limits.policy();
        let admitted = host.host.circuits().admit(topic, Instant::now(), &policy);
        let admitted = admitted.map_err(|open| circuit_open(name, topic, open))?;
        Ok(CallPermit {
            host,
            admitted,
            health: HostHealth::Unknown,
        })
    }

    fn host(&self, name: &str) -> HostRef {
        let mut known = self.known.lock();
        let host = if let Some(host) = known.by_name.get(name) {
            Arc::clone(host)
        } else {
            known.forget_some(Instant::now());
            let host = Arc::new(Host {
                circuits: Mutex::default(),
                is_noted: AtomicBool::new(false),
            });
            known.by_name.insert(name.to_owned(), Arc::clone(&host));
            host
        };
        HostRef {
            known: Arc::clone(&self.known),
            host,
            name: name.to_owned(),
        }
    }

    /// How many circuits are open.
    pub(super) fn open_circuits(&self) -> usize {
        let now = Instant::now();
        let known = self.known.lock();
        let hosts = known.by_name.values();
        hosts.map(|host| host.circuits().open(now)).sum()
    }
}

impl Host {
    fn circuits(&self) -> MutexGuard<'_, Circuits> {
        self.circuits.lock()
    }
}

impl KnownHosts {
    /// Forgets hosts that failed long ago, or for too many others. A few at a time, and more than come in.
    fn forget_some(&mut self, now: Instant) {
        for _ in 0..4 {
            let is_full = self.by_name.len() > REMEMBERED;
            let is_over = |at: Instant| now.saturating_duration_since(at) >= REMEMBERED_FOR;
            let Some((_, name)) = self.by_age.pop_front_if(|(at, _)| is_full || is_over(*at))
            else {
                return;
            };
            let Some(host) = self.by_name.get(&name) else {
                continue;
            };
            let is_used = Arc::strong_count(host) > 1;
            let failed = host.circuits().failed_at();
            if is_used || !is_full && failed.is_some_and(|at| !is_over(at)) {
                let at = if is_used { now } else { failed.unwrap_or(now) };
                self.by_age.push_back((at, name));
            } else {
                self.by_name.remove(&name);
            }
        }
    }
}

impl CallPermit {
    /// Says how the call ended, as far as the host is concerned.
    pub(super) fn finish(mut self, health: HostHealth) {
        self.health = health;
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let HostRef { host, name, .. } = &self.host;
        let mut circuits = host.circuits();
        circuits.ended(name, &self.admitted, self.health, Instant::now());
    }
}

impl Drop for HostRef {
    fn drop(&mut self) {
        if self.host.circuits().is_pristine() {
            let mut known = self.known.lock();
            // This reference and the one in the map: no other call uses the host.
            if Arc::strong_count(&self.host) == 2 && self.host.circuits().is_pristine() {
                known.by_name.remove(&self.name);
            }
        } else if !self.host.is_noted.swap(true, Ordering::Relaxed) {
            let mut known = self.known.lock();
            known.by_age.push_back((Instant::now(), self.name.clone()));
        }
    }
}

fn circuit_open(host: &str, topic: &str, open: CircuitOpen) -> CallError {
    CallError::CircuitOpen {
        host: host.to_owned(),
        topic: open.of_topic.then(|| topic.to_owned()),
        wait: Some(spread(open.wait)),
    }
}

/// Somewhere between the wait and its double, so that calls that were refused together do not
/// come back together.
fn spread(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(change: impl FnOnce(&mut Limits)) -> HostCircuits {
        let mut limits = Limits::default();
        change(&mut limits);
        HostCircuits::new(limits)
    }

    fn call(hosts: &HostCircuits, name: &str, health: HostHealth) {
        let permit = hosts.permit(name, "topic").expect("a permit");
        permit.finish(health);
    }

    #[test]
    fn hosts_that_answer_are_not_remembered() {
        let hosts = hosts(|_| ());
        for number in 0..1000 {
            call(&hosts, &format!("host-{number}"), HostHealth::Works);
        }
        assert_eq!(hosts.known.lock().by_name.len(), 0);
        // Nor are those whose call was given up.
        let held = hosts.permit("a", "topic").expect("a permit");
        drop(held);
        assert_eq!(hosts.known.lock().by_name.len(), 0);
    }

    #[test]
    fn hosts_that_failed_are_forgotten_after_a_while_and_above_a_number() {
        let hosts = hosts(|_| ());
        let count = REMEMBERED + 1000;
        for number in 0..count {
            call(&hosts, &format!("host-{number}"), HostHealth::IsAway);
        }
        let known = |hosts: &HostCircuits| hosts.known.lock().by_name.len();
        assert!(known(&hosts) <= REMEMBERED + 2, "{}", known(&hosts));
        let later = Instant::now() + REMEMBERED_FOR;
        for _ in 0..count / 4 {
            hosts.known.lock().forget_some(later);
        }
        assert_eq!(known(&hosts), 0);
        assert_eq!(hosts.known.lock().by_age.len(), 0);
    }

    #[test]
    fn circuits_whose_wait_is_over_are_not_counted_as_open() {
        let hosts = hosts(|limits| {
            limits.failures_to_open = 1;
            limits.open_for = Duration::from_millis(50);
        });
        for number in 0..10 {
            call(&hosts, &format!("host-{number}"), HostHealth::IsAway);
        }
        let started = Instant::now();
        while hosts.open_circuits() > 0 {
            assert!(started.elapsed() < Duration::from_secs(20), "they stay");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

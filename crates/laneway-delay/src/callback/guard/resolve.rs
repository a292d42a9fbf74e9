//! Names become addresses here and nowhere else.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::dns::Name;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;
use tower_service::Service;

use super::Guard;
use super::lookups::Lookups;

/// The addresses of a name, when they are known.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Finds the addresses of a name. [`System`] asks the operating system; tests have their own.
pub trait Resolve: Send + Sync + 'static {
    /// Looks the name up, each time anew. Who calls asks for one name once at a time, and keeps what it
    /// hears for a few seconds.
    fn resolve(&self, host: &str) -> Resolving;
}

/// How many lookups run at the same time. Each takes a thread of its own for as long as the system does, which
/// can be half a minute for a name whose servers do not answer. The threads are not those that others need.
const THREADS: usize = 512;
/// How long a thread waits for the next lookup.
const IDLE: Duration = Duration::from_secs(10);

/// Asks the operating system.
#[derive(Clone, Default)]
pub struct System {
    threads: Arc<Threads>,
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Threads {
    work: Mutex<Work>,
    come: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Lookup>,
    threads: usize,
    idle: usize,
    turns: usize,
}

struct Lookup {
    host: String,
    answer: oneshot::Sender<io::Result<Vec<IpAddr>>>,
}

impl Work {
    /// Every second turn goes to the name that came last: it does not wait for all that hang.
    fn next(&mut self) -> Option<Lookup> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(2) {
            self.waiting.pop_back()
        } else {
            self.waiting.pop_front()
        }
    }
}

impl Threads {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    fn add(self: &Arc<Self>, lookup: Lookup) {
        let mut work = self.work();
        work.waiting.push_back(lookup);
        if work.idle >= work.waiting.len() || work.threads == THREADS {
            self.come.notify_one();
            return;
        }
        work.threads += 1;
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("laneway-lookup".to_owned());
        if let Err(error) = thread.spawn(move || this.run()) {
            work.threads -= 1;
            if work.threads == 0
                && let Some(lookup) = work.waiting.pop_back()
            {
                let _ = lookup.answer.send(Err(error));
            }
        }
    }

    fn run(&self) {
        let mut work = self.work();
        loop {
            if let Some(Lookup { host, answer }) = work.next() {
                drop(work);
                let addresses = (host.as_str(), 0).to_socket_addrs();
                let addresses = addresses.map(|found| found.map(|address| address.ip()).collect());
                let _ = answer.send(addresses);
                work = self.work();
                continue;
            }
            work.idle += 1;
            let waited = self.come.wait_for(&mut work, IDLE);
            work.idle -= 1;
            if waited.timed_out() && work.waiting.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

impl Resolve for System {
    fn resolve(&self, host: &str) -> Resolving {
        let (answer, answered) = oneshot::channel();
        self.threads.add(Lookup {
            host: host.to_owned(),
            answer,
        });
        Box::pin(async move { answered.await.map_err(io::Error::other)? })
    }
}

/// The resolver of the HTTP client: it hands out only addresses that have passed the guard, and
/// the client connects to nothing else.
#[derive(Clone)]
pub(in crate::callback) struct Checked {
    guard: Guard,
    lookups: Lookups,
}

impl Checked {
    pub(in crate::callback) fn new(guard: Guard, resolver: impl Resolve) -> Self {
        Self {
            guard,
            lookups: Lookups::new(Arc::new(resolver)),
        }
    }
}

impl Service<Name> for Checked {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let host = name.as_str();
            let addresses = this.lookups.find(host).await?;
            // Also of what is known already: what may be called is decided each time.
            this.guard.check_resolved(host, &addresses)?;
            // Port 0 stands for that of the URL.
            let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(addresses.collect::<Vec<_>>().into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_this_machine_and_threads_are_used_again() {
        let system = System::default();
        for _ in 0..20 {
            let found = system.resolve("localhost").await.expect("this machine");
            assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
            let started = std::time::Instant::now();
            while system.threads.work().idle == 0 {
                assert!(started.elapsed() < Duration::from_secs(20), "it stays busy");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(system.threads.work().threads, 1);
    }
}

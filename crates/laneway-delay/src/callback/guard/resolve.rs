//! Names become addresses here and nowhere else.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Guard;

/// The addresses of a name, when they are known.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Finds the addresses of a name. [`System`] is what everybody uses but tests.
pub trait Resolve: Send + Sync + 'static {
    /// Looks the name up, each time anew.
    fn resolve(&self, host: &str) -> Resolving;
}

/// Lookups at the same time. Each takes a thread for as long as the system does, also when nobody waits
/// for it any more, and threads are shared with others.
const LOOKUPS: usize = 128;

/// Asks the operating system.
#[derive(Clone, Debug)]
pub struct System {
    lookups: Arc<Semaphore>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }
}

impl Resolve for System {
    fn resolve(&self, host: &str) -> Resolving {
        let (host, lookups) = (host.to_owned(), Arc::clone(&self.lookups));
        Box::pin(async move {
            let turn = lookups.acquire_owned().await.map_err(io::Error::other)?;
            let looking = tokio::task::spawn_blocking(move || {
                let addresses = (host.as_str(), 0).to_socket_addrs();
                drop(turn);
                Ok(addresses?.map(|address| address.ip()).collect())
            });
            looking.await.map_err(io::Error::other)?
        })
    }
}

/// The resolver of the HTTP client: it hands out only addresses that have passed the guard, and
/// the client connects to nothing else.
pub(in crate::callback) struct Checked {
    pub(in crate::callback) guard: Guard,
    pub(in crate::callback) resolver: Arc<dyn Resolve>,
}

impl reqwest::dns::Resolve for Checked {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let guard = self.guard.clone();
        let host = name.as_str().to_owned();
        let resolving = self.resolver.resolve(&host);
        Box::pin(async move {
            let addresses = resolving.await?;
            guard.check_resolved(&host, &addresses)?;
            // Port 0 stands for that of the URL.
            let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as reqwest::dns::Addrs)
        })
    }
}

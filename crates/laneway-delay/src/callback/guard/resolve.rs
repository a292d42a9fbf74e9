//! Names become addresses here and nowhere else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use super::Guard;

/// The addresses of a name, when they are known.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Finds the addresses of a name. [`System`] is what everybody uses but tests.
pub trait Resolve: Send + Sync + 'static {
    /// Looks the name up, each time anew.
    fn resolve(&self, host: &str) -> Resolving;
}

/// Asks the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Resolve for System {
    fn resolve(&self, host: &str) -> Resolving {
        let host = host.to_owned();
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((host, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
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

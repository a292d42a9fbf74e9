//! Where delayed events of a bus are kept.

#[cfg(feature = "file")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use laneway_delay::{Delays, Options, Sinks};
use tokio::sync::Mutex;

use super::BusSink;
use crate::bus::{Bus, Error};

/// Where delayed events of a bus are kept, and the core that keeps them, once it is needed.
pub(in crate::bus) struct Backend {
    location: Location,
    core: Mutex<Core>,
}

enum Location {
    Memory,
    #[cfg(feature = "file")]
    Directory(PathBuf),
    /// A server keeps them.
    Elsewhere,
}

enum Core {
    Idle,
    Started(Delays),
    Closed,
}

impl Backend {
    pub(in crate::bus) fn in_memory() -> Self {
        Self::at(Location::Memory)
    }

    /// Beside what the broker keeps in its directory.
    #[cfg(feature = "file")]
    pub(in crate::bus) fn in_directory(directory: &str) -> Self {
        Self::at(Location::Directory(
            PathBuf::from(directory).join("delayed"),
        ))
    }

    pub(in crate::bus) fn elsewhere() -> Self {
        Self::at(Location::Elsewhere)
    }

    fn at(location: Location) -> Self {
        Self {
            location,
            core: Mutex::new(Core::Idle),
        }
    }

    /// Starts the core if events wait from before.
    #[cfg(feature = "file")]
    pub(in crate::bus) async fn resume(&self, bus: &Bus) -> Result<(), Error> {
        if let Location::Directory(path) = &self.location
            && path.exists()
        {
            self.started(bus).await?;
        }
        Ok(())
    }

    /// The core, started by its first use. `None` if a server keeps the events.
    ///
    /// The core has the bus, and the bus has the core, until the bus is closed: events that wait keep it
    /// going.
    pub(in crate::bus) async fn started(&self, bus: &Bus) -> Result<Option<Delays>, Error> {
        if let Location::Elsewhere = self.location {
            return Ok(None);
        }
        let mut core = self.core.lock().await;
        if let Core::Idle = *core {
            let sinks = Sinks {
                bus: Some(Arc::new(BusSink::new(bus.clone()))),
                callbacks: None,
            };
            let delays = match &self.location {
                #[cfg(feature = "file")]
                Location::Directory(path) => Delays::open(path, sinks, Options::default()).await?,
                _ => Delays::in_memory(sinks, Options::default())?,
            };
            *core = Core::Started(delays);
        }
        match &*core {
            Core::Started(delays) => Ok(Some(delays.clone())),
            _ => Err(Error::Closed),
        }
    }

    pub(in crate::bus) async fn close(&self, deadline: Duration) -> Result<(), Error> {
        let core = std::mem::replace(&mut *self.core.lock().await, Core::Closed);
        if let Core::Started(delays) = core {
            delays.close(deadline).await?;
        }
        Ok(())
    }
}

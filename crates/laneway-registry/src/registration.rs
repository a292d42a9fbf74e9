//! What a process holds in the registry.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::keeper::Command;
use crate::{InstanceId, Load, Role};

/// [`Registration::leave`] waits no longer; a server that is away misses the instance by itself.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Whether an instance is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationState {
    /// Not yet, or not any more since the session was lost: it is being written.
    Pending,
    /// Others see it.
    Listed,
    /// An operator took it off the list. It stays off.
    Removed,
}

/// The entry of an instance. The instance leaves when it is dropped.
#[derive(Debug)]
pub struct Registration {
    commands: mpsc::UnboundedSender<Command>,
    role: Role,
    id: InstanceId,
    states: watch::Receiver<RegistrationState>,
}

impl Registration {
    pub(crate) fn new(
        commands: mpsc::UnboundedSender<Command>,
        role: Role,
        id: InstanceId,
        states: watch::Receiver<RegistrationState>,
    ) -> Self {
        Self {
            commands,
            role,
            id,
            states,
        }
    }

    /// Whose entry it is.
    #[must_use]
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// Whether it is listed, now and from now on.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<RegistrationState> {
        self.states.clone()
    }

    /// Tells others how loaded it is.
    pub fn report(&self, load: Load) {
        let (role, id) = (self.role, self.id);
        let _ = self.commands.send(Command::Report { role, id, load });
    }

    /// Leaves, and waits until others know, for two seconds at most.
    pub async fn leave(self) {
        let (sender, left) = oneshot::channel();
        let _ = self.commands.send(self.leaving(Some(sender)));
        let _ = tokio::time::timeout(LEAVE_WITHIN, left).await;
    }

    fn leaving(&self, left: Option<oneshot::Sender<()>>) -> Command {
        Command::Leave {
            role: self.role,
            id: self.id,
            left,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = self.commands.send(self.leaving(None));
    }
}

/// A lock that an instance holds. See [`Registry::try_lock`](crate::Registry::try_lock).
#[derive(Debug)]
pub struct Lock {
    commands: mpsc::UnboundedSender<Command>,
    name: String,
    holder: InstanceId,
}

impl Lock {
    pub(crate) fn new(
        commands: mpsc::UnboundedSender<Command>,
        name: String,
        holder: InstanceId,
    ) -> Self {
        Self {
            commands,
            name,
            holder,
        }
    }

    /// What is locked.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unlock {
            name: std::mem::take(&mut self.name),
            holder: self.holder,
        });
    }
}

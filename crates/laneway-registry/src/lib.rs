//! Which instances of the delay service are there.
//!
//! A [`Registry`] is a phone book: processes [`register`](Registry::register) what they are (a role, an address, how
//! loaded they are), and [`watch`](Registry::watch) who else is there. It decides nothing: no promise of the service rests on it. What is
//! lost with it is found again by its entries being written anew.
//!
//! | made by | where | an instance is missed |
//! |---|---|---|
//! | [`Registry::local`] | one process | when its registration is dropped |
//! | `Registry::zookeeper` | ephemeral nodes `/laneway/ROLE/ID` | when its session ends |
//! | `Registry::nats` | a `JetStream` bucket, with heartbeats | after a session without one, as every reader counts for itself |
//!
//! **Gone means dead only while the server answers.** When the server is away, or this process is cut off from it,
//! [`Directory::is_current`] is false and the instances stay as they were last seen. A process that was frozen itself
//! does not take the time that it slept for silence of others.
//!
//! **Identity.** An instance is a process that was started: its [`InstanceId`] is drawn anew each time. The name is for
//! people; two instances may have the same one.
//!
//! ```
//! use laneway_registry::{Instance, Registry, Role};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let registry = Registry::local();
//! let worker = Instance::new(Role::Worker, "worker-a", "127.0.0.1:7071");
//! let registration = registry.register(worker);
//!
//! let mut workers = registry.watch(Role::Worker);
//! let there = workers.wait_for(|workers| workers.instances().count() == 1).await;
//! assert_eq!(there.expect("it is watched").instances().next().map(|it| &*it.name), Some("worker-a"));
//! registration.leave().await;
//! # }
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `instance` | [`Instance`], [`Role`], [`Load`]: what is registered |
//! | `directory` | [`Directory`]: the instances of a role, as last heard |
//! | `registration` | [`Registration`] and [`Lock`]: what a process holds in the registry |
//! | `keeper` | the task that keeps entries and directories, whatever the backend |
//! | `local` | the backend in one process |
//! | `nats` | the backend in a `JetStream` bucket |
//! | `zookeeper` | the backend in `ZooKeeper` |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(any(feature = "nats", feature = "zookeeper")),
    expect(dead_code, reason = "a registry of one process is never away")
)]

mod directory;
mod error;
mod instance;
mod keeper;
mod local;
#[cfg(feature = "nats")]
mod nats;
mod registration;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

pub use self::directory::Directory;
pub use self::error::Error;
pub use self::instance::{Instance, InstanceId, Load, Role};
#[cfg(feature = "nats")]
pub use self::nats::NatsOptions;
pub use self::registration::{Lock, Registration, RegistrationState};
#[cfg(feature = "zookeeper")]
pub use self::zookeeper::ZooKeeperOptions;

use self::directory::Directories;
use self::keeper::{Backend, Command, Keeper};

/// A handle on the registry; clones are the same one. See the [crate](self).
#[derive(Clone, Debug)]
pub struct Registry {
    commands: mpsc::UnboundedSender<Command>,
    directories: Arc<Directories>,
}

impl Registry {
    /// A registry of one process, shared by the clones of this handle.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, as the others.
    #[must_use]
    pub fn local() -> Self {
        Self::over(local::Local::default())
    }

    /// A registry in `ZooKeeper`. It connects in the background, and again whenever it has to.
    #[cfg(feature = "zookeeper")]
    #[must_use]
    pub fn zookeeper(options: ZooKeeperOptions) -> Self {
        Self::over(zookeeper::ZooKeeper::new(options))
    }

    /// A registry in a `JetStream` bucket, over a client that reconnects by itself.
    #[cfg(feature = "nats")]
    #[must_use]
    pub fn nats(client: async_nats::Client, options: NatsOptions) -> Self {
        Self::over(nats::Nats::new(client, options))
    }

    fn over(backend: impl Backend) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let directories = Arc::<Directories>::default();
        let keeper = Keeper::new(backend, received, directories.clone());
        // It ends when the last handle, registration and lock are gone.
        tokio::spawn(keeper.run());
        Self {
            commands,
            directories,
        }
    }

    /// Registers an instance. It is listed as soon as the server is reached, and again after every loss of the
    /// session, until the registration is dropped or an operator [removes](Self::remove) it.
    #[must_use = "an instance leaves when its registration is dropped"]
    pub fn register(&self, instance: Instance) -> Registration {
        let (state, states) = watch::channel(RegistrationState::Pending);
        let (role, id) = (instance.role, instance.id);
        let _ = self.commands.send(Command::Register {
            instance: Box::new(instance),
            state,
        });
        Registration::new(self.commands.clone(), role, id, states)
    }

    /// The instances of a role, now and from now on.
    #[must_use]
    pub fn watch(&self, role: Role) -> watch::Receiver<Directory> {
        self.directories.watch(role)
    }

    /// Takes a lock for an instance that is registered here, if no other instance has it. The lock is free again when
    /// it is dropped, or when its holder is missed. Nothing may be decided by it: a holder that was frozen can be
    /// late to hear that it has lost it.
    ///
    /// # Errors
    /// [`Error::Away`] if the server did not answer within `within`.
    pub async fn try_lock(
        &self,
        name: &str,
        holder: InstanceId,
        within: Duration,
    ) -> Result<Option<Lock>, Error> {
        let name = checked(name)?;
        let (sender, answer) = oneshot::channel();
        let command = Command::Lock {
            name: name.to_owned(),
            holder,
            answer: sender,
        };
        let is_ours = self.call(command, answer, within).await?;
        Ok(is_ours.then(|| Lock::new(self.commands.clone(), name.to_owned(), holder)))
    }

    /// Takes an instance off the list, by an operator. It hears of that
    /// ([`RegistrationState::Removed`]) and does not come back. Answers whether it was there.
    ///
    /// # Errors
    /// [`Error::Away`] if the server did not answer within `within`.
    pub async fn remove(
        &self,
        role: Role,
        id: InstanceId,
        within: Duration,
    ) -> Result<bool, Error> {
        let (sender, answer) = oneshot::channel();
        let command = Command::Remove {
            role,
            id,
            answer: sender,
        };
        self.call(command, answer, within).await
    }

    async fn call<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<Result<T, Error>>,
        within: Duration,
    ) -> Result<T, Error> {
        self.commands.send(command).map_err(|_| Error::Closed)?;
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Away {
                detail: "no answer in time".to_owned(),
            }),
        }
    }
}

/// A name that every backend can have in a path.
fn checked(name: &str) -> Result<&str, Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_plain) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_path_cannot_have_are_refused() {
        for name in ["", "a/b", "a b", "..", "ä", &"x".repeat(129)] {
            let error = checked(name).unwrap_err().to_string();
            assert!(error.contains("letters, digits"), "{error}");
        }
        assert_eq!(checked("worker-1_a").unwrap(), "worker-1_a");
    }
}

//! What runs, written down: the state file.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::deadline::Deadline;
use super::process::Process;
use super::{NatsSync, Service, files, place};

/// One service that we started: a server, or several nodes that form a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) service: Service,
    pub(crate) nodes: Vec<Node>,
    /// How many nodes there are to be. Fewer are in `nodes` while it starts.
    pub(crate) size: u8,
    pub(crate) nats_sync: NatsSync,
    /// Brought up by `services up`, and so up until `services down`.
    pub(crate) kept: bool,
    /// Programs that run on it now. Where nobody is left and it is not `kept`, it is stopped.
    pub(crate) users: Vec<Process>,
    /// Set once it answered.
    pub(crate) reached: Option<Reached>,
}

/// How to reach a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    pub(crate) address: String,
    pub(crate) version: String,
    pub(crate) variables: Vec<(String, String)>,
}

/// One process of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) log: PathBuf,
}

impl Entry {
    pub(crate) fn processes(&self) -> Vec<Process> {
        self.nodes.iter().map(|node| node.process).collect()
    }

    pub(crate) fn first_dead(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| !node.process.is_alive())
    }

    /// Whether somebody besides `me` relies on it.
    pub(crate) fn is_used_by_others(&self, me: Process) -> bool {
        self.users.iter().any(|user| *user != me && user.is_alive())
    }
}

/// The contents of the state file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
    /// What the last attempt to start could not have, and why.
    pub(crate) unavailable: BTreeMap<Service, String>,
}

impl Ledger {
    fn file() -> PathBuf {
        place::services().join("state.json")
    }

    /// What runs, as last written down. Nothing, if nothing ever was.
    pub(crate) fn load() -> anyhow::Result<Self> {
        Self::load_from(&Self::file())
    }

    fn load_from(file: &Path) -> anyhow::Result<Self> {
        match fs::read(file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} cannot be read; end the processes it names by hand, then remove it",
                    file.display()
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    pub(crate) fn save(&self) -> anyhow::Result<()> {
        self.save_to(&Self::file())
    }

    fn save_to(&self, file: &Path) -> anyhow::Result<()> {
        files::replace(file, serde_json::to_vec_pretty(self)?)
    }

    pub(crate) fn entry(&self, service: Service) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.service == service)
    }

    pub(crate) fn entry_mut(&mut self, service: Service) -> Option<&mut Entry> {
        self.entries
            .iter_mut()
            .find(|entry| entry.service == service)
    }

    pub(crate) fn remove(&mut self, service: Service) {
        self.entries.retain(|entry| entry.service != service);
    }
}

/// Whether this process has the lock, for its own signal handler to know.
static OURS: AtomicBool = AtomicBool::new(false);

/// Held by whoever starts or stops servers: one program at a time.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// As long as a first download may take.
    const PATIENCE: Duration = Duration::from_mins(20);

    pub(crate) fn take() -> anyhow::Result<Self> {
        Self::take_within(Self::PATIENCE)
    }

    pub(crate) fn take_within(patience: Duration) -> anyhow::Result<Self> {
        files::make_folder(&place::services())?;
        Self::take_file(&place::services().join("lock"), patience)
    }

    pub(crate) fn is_ours() -> bool {
        OURS.load(Ordering::SeqCst)
    }

    fn take_file(path: &Path, patience: Duration) -> anyhow::Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut announced = false;
        let locked = Deadline::after(patience).poll(|| match file.try_lock() {
            Ok(()) => Some(Ok(())),
            Err(TryLockError::WouldBlock) => {
                if !announced {
                    announced = true;
                    eprintln!("waiting for another xtask that starts or stops services");
                }
                None
            }
            Err(TryLockError::Error(error)) => Some(Err(error)),
        });
        match locked {
            Some(Ok(())) => {
                OURS.store(true, Ordering::SeqCst);
                Ok(Self { _file: file })
            }
            Some(Err(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
            None => bail!("another xtask has been busy with the services for {patience:?}"),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        OURS.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(users: Vec<Process>) -> Entry {
        let me = Process::current().unwrap();
        Entry {
            service: Service::Nats,
            nodes: vec![Node {
                name: "nats-1".to_owned(),
                process: me,
                log: PathBuf::from("nats-1.log"),
            }],
            size: 1,
            nats_sync: NatsSync::Always,
            kept: false,
            users,
            reached: Some(Reached {
                address: "nats://127.0.0.1:1".to_owned(),
                version: "2.12.0".to_owned(),
                variables: vec![("A".to_owned(), "b".to_owned())],
            }),
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let mut ledger = Ledger {
            entries: vec![entry(Vec::new())],
            ..Ledger::default()
        };
        ledger
            .unavailable
            .insert(Service::Kafka, "no Java".to_owned());
        ledger.save_to(&file).unwrap();
        assert_eq!(Ledger::load_from(&file).unwrap(), ledger);
    }

    #[test]
    fn no_file_means_that_nothing_runs() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::load_from(&folder.path().join("state.json")).unwrap();
        assert_eq!(ledger, Ledger::default());
    }

    #[test]
    fn a_broken_file_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        fs::write(&file, "{").unwrap();
        let error = Ledger::load_from(&file).unwrap_err();
        assert!(format!("{error:#}").contains("then remove it"), "{error:#}");
    }

    #[test]
    fn only_other_living_users_count() {
        let me = Process::current().unwrap();
        assert!(!entry(vec![me]).is_used_by_others(me));
        let gone: Process = serde_json::from_str(r#"{"pid": 4194305, "started": 1}"#).unwrap();
        assert!(!entry(vec![gone]).is_used_by_others(me));
        assert!(entry(vec![me]).is_used_by_others(gone));
    }

    #[test]
    fn one_program_at_a_time_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        let held = Lock::take_file(&file, Duration::ZERO).unwrap();
        assert!(Lock::take_file(&file, Duration::ZERO).is_err());
        drop(held);
        // A process that another test is about to start may have it for a moment more.
        assert!(Lock::take_file(&file, Duration::from_mins(1)).is_ok());
    }
}

//! Letting go of services, and stopping those that nobody needs.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;

use super::Service;
use super::ledger::{Entry, Ledger, Lock};
use super::process::Process;
use super::site::{self, with};

/// Makes what this process uses stay up after it.
pub(crate) fn keep() -> anyhow::Result<()> {
    let me = Process::current()?;
    let _lock = Lock::take()?;
    let mut ledger = Ledger::load()?;
    for entry in ledger
        .entries
        .iter_mut()
        .filter(|entry| entry.users.contains(&me))
    {
        entry.kept = true;
        entry.users.retain(|user| *user != me);
    }
    ledger.save()
}

/// This process needs the services of its calls to [`ensure`](super::ensure()) no longer. Those that nobody else
/// uses and that were not brought up to stay (`services up`) are stopped.
pub(crate) fn release() -> anyhow::Result<()> {
    let _lock = Lock::take()?;
    let_go()
}

/// The same on the way out, where there is little time.
pub(crate) fn release_interrupted() -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(3);
    // Where this process was in the middle of a start, it has the lock.
    let _lock = if Lock::is_ours() {
        None
    } else {
        Some(Lock::take_within(PATIENCE)?)
    };
    let_go()
}

fn let_go() -> anyhow::Result<()> {
    let me = Process::current()?;
    let mut ledger = Ledger::load()?;
    for entry in &mut ledger.entries {
        entry.users.retain(|user| *user != me);
    }
    sweep(&Mutex::new(ledger), &[])
}

/// Stops everything that was started.
pub(crate) fn down() -> anyhow::Result<()> {
    let _lock = Lock::take()?;
    let mut ledger = Ledger::load()?;
    ledger.unavailable.clear();
    let everything: Vec<Service> = ledger.entries.iter().map(|entry| entry.service).collect();
    stop(&everything, &Mutex::new(ledger))
}

/// Stops what nobody needs: left behind by a program that was killed, or just let go of.
pub(super) fn sweep(ledger: &Mutex<Ledger>, except: &[Service]) -> anyhow::Result<()> {
    let unneeded: Vec<Service> = with(ledger, |ledger| {
        for entry in &mut ledger.entries {
            entry.users.retain(|user| user.is_alive());
        }
        let unneeded = |entry: &&Entry| {
            !entry.kept && entry.users.is_empty() && !except.contains(&entry.service)
        };
        ledger
            .entries
            .iter()
            .filter(unneeded)
            .map(|entry| entry.service)
            .collect()
    });
    stop(&unneeded, ledger)
}

/// Stops services at the same time. One that does not stop does not keep the others up.
fn stop(services: &[Service], ledger: &Mutex<Ledger>) -> anyhow::Result<()> {
    let results: Vec<anyhow::Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = services
            .iter()
            .map(|&service| scope.spawn(move || site::clear(service, ledger)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("stopping panicked")))
            })
            .collect()
    });
    with(ledger, |ledger| ledger.save())?;
    results.into_iter().collect()
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};

use super::ledger::{Entry, Ledger, Node, Reached};
use super::process::{Process, stop};
use super::progress::Line;
use super::{NatsSync, Service, files, interrupt, place};

/// Where one service is being built up: its folder, its line on the screen, its entry in the ledger.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) service: Service,
    pub(crate) line: &'a Line,
    pub(crate) size: u8,
    pub(crate) nats_sync: NatsSync,
    ledger: &'a Mutex<Ledger>,
}

impl<'a> Site<'a> {
    /// Opens a fresh site: an entry without nodes.
    pub(crate) fn open(
        entry: Entry,
        line: &'a Line,
        ledger: &'a Mutex<Ledger>,
    ) -> anyhow::Result<Self> {
        let site = Self {
            service: entry.service,
            line,
            size: entry.size,
            nats_sync: entry.nats_sync,
            ledger,
        };
        files::remove_folder(&data_folder(site.service))?;
        with(ledger, |ledger| {
            ledger.remove(entry.service);
            ledger.entries.push(entry);
            ledger.save()
        })?;
        Ok(site)
    }

    /// The names of the nodes: `kafka-1`, `kafka-2`, …
    pub(crate) fn nodes(&self) -> Vec<String> {
        (1..=self.size)
            .map(|number| format!("{}-{number}", self.service))
            .collect()
    }

    /// An empty folder for one node's configuration and data.
    pub(crate) fn folder(&self, node: &str) -> anyhow::Result<PathBuf> {
        let folder = data_folder(self.service).join(node);
        files::make_folder(&folder)?;
        Ok(folder)
    }

    /// Starts a node and writes it down in one go, so that no node is ever forgotten.
    pub(crate) fn start(&self, node: &str, command: &mut Command) -> anyhow::Result<()> {
        files::make_folder(&place::logs())?;
        let log = place::logs().join(format!("{node}.log"));
        let _permit = interrupt::start_permit();
        let process = Process::spawn(command, &log)?;
        let written = with(self.ledger, |ledger| {
            let entry = ledger
                .entry_mut(self.service)
                .context("the site was closed")?;
            entry.nodes.push(Node {
                name: node.to_owned(),
                process,
                log,
            });
            ledger.save()
        });
        written.inspect_err(|_| {
            // Without an entry nobody would ever stop it.
            let _ = stop(&[process]);
        })
    }

    /// Whether anything was started here.
    pub(crate) fn has_nodes(&self) -> bool {
        with(self.ledger, |ledger| {
            ledger
                .entry(self.service)
                .is_some_and(|entry| !entry.nodes.is_empty())
        })
    }

    /// An error if a node ended, with the last words of its log.
    pub(crate) fn check_alive(&self) -> anyhow::Result<()> {
        let dead = with(self.ledger, |ledger| {
            ledger
                .entry(self.service)
                .and_then(Entry::first_dead)
                .cloned()
        });
        match dead {
            Some(node) => bail!("{} ended: {}", node.name, last_words(&node.log)),
            None => Ok(()),
        }
    }

    /// The service answers: now everyone may know.
    pub(crate) fn complete(&self, reached: Reached) -> anyhow::Result<()> {
        with(self.ledger, |ledger| {
            let entry = ledger
                .entry_mut(self.service)
                .context("the site was closed")?;
            entry.reached = Some(reached);
            ledger.save()
        })
    }

    /// Gives up: stops what was started and forgets it.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        clear(self.service, self.ledger)
    }
}

/// Stops a service's nodes, removes its data and forgets it. The logs stay.
pub(crate) fn clear(service: Service, ledger: &Mutex<Ledger>) -> anyhow::Result<()> {
    let processes = with(ledger, |ledger| {
        ledger
            .entry(service)
            .map(Entry::processes)
            .unwrap_or_default()
    });
    stop(&processes).map_err(|error| anyhow!("{service}: {error:#}"))?;
    files::remove_folder(&data_folder(service))?;
    with(ledger, |ledger| {
        ledger.remove(service);
        ledger.save()
    })
}

pub(crate) fn with<T>(ledger: &Mutex<Ledger>, act: impl FnOnce(&mut Ledger) -> T) -> T {
    act(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner))
}

fn data_folder(service: Service) -> PathBuf {
    place::data().join(service.name())
}

/// What a log says about the end, on one line.
pub(crate) fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let reason = reason(&String::from_utf8_lossy(&text));
    format!("{reason} (log: {})", place::shown(log))
}

/// The first error it reports, for what follows is usually advice; else its last lines.
fn reason(log: &str) -> String {
    const LINES: usize = 3;
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let is_error = |line: &&&str| line.contains("ERROR") || line.starts_with("E: ");
    match lines.iter().find(is_error) {
        Some(error) => (*error).to_owned(),
        None if lines.is_empty() => "it said nothing".to_owned(),
        None => lines[lines.len().saturating_sub(LINES)..].join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_first_error_is_the_reason() {
        let log = "[INFO] scanning\n[ERROR] no such artifact\n[ERROR] read the manual\n";
        assert_eq!(reason(log), "[ERROR] no such artifact");
        assert_eq!(reason("Reading lists\nE: no package\n"), "E: no package");
    }

    #[test]
    fn without_an_error_the_last_lines_have_to_do() {
        assert_eq!(reason("one\ntwo\n\nthree\nfour\n"), "two; three; four");
        assert_eq!(reason("\n"), "it said nothing");
    }
}

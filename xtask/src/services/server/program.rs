//! Programs that tests drive. They are no servers: there is nothing to start, only something to have.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::Built;
use crate::services::Service;
use crate::services::install::{apt::Unpacked, on_path, output};
use crate::services::site::Site;

/// Where a program is found, or what it is fetched from.
#[derive(Debug)]
pub(crate) struct Program {
    /// The names under which distributions install it.
    names: &'static [&'static str],
    /// The Debian package, and the program in it.
    package: (&'static str, &'static str),
    /// What makes it print its version.
    version: &'static str,
}

pub(super) const CHROMIUM: Program = Program {
    names: &[
        "chromium",
        "chromium-browser",
        "google-chrome-stable",
        "google-chrome",
    ],
    package: ("chromium", "usr/lib/chromium/chromium"),
    version: "--version",
};

pub(super) const KCAT: Program = Program {
    names: &["kcat", "kafkacat"],
    package: ("kcat", "usr/bin/kcat"),
    version: "-V",
};

impl Program {
    /// The one that a service stands for, if it is no server.
    pub(crate) const fn of(service: Service) -> Option<Self> {
        match service {
            Service::Chromium => Some(CHROMIUM),
            Service::Kcat => Some(KCAT),
            Service::Kafka
            | Service::Nats
            | Service::Redis
            | Service::Zookeeper
            | Service::Nginx => None,
        }
    }

    pub(super) fn build(&self, site: &Site<'_>) -> anyhow::Result<Built> {
        let program = match self.names.iter().find_map(|name| on_path(name)) {
            Some(program) => program,
            None => self.fetched(site)?,
        };
        Ok(Built {
            address: program.display().to_string(),
            version: None,
            program: None,
        })
    }

    fn fetched(&self, site: &Site<'_>) -> anyhow::Result<PathBuf> {
        let (name, file) = self.package;
        let package = Unpacked::with(site.line, name, &[name], file)?;
        package.wrapper(name, &package.file)
    }

    /// Whether it runs at all.
    pub(crate) fn version(&self, program: &Path) -> anyhow::Result<String> {
        let text = output(Command::new(program).arg(self.version))?;
        number(&text).with_context(|| format!("{} says {:?}", self.version, text.trim()))
    }
}

/// The number in `Chromium 140.0.7339.80 built on Debian GNU/Linux`.
fn number(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_ascii_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_dotted_number() {
        let text = "Chromium 140.0.7339.80 built on Debian GNU/Linux 12 (bookworm)\n";
        assert_eq!(number(text).as_deref(), Some("140.0.7339.80"));
        let text = "kcat - Apache Kafka producer and consumer tool\nVersion 1.7.1 (JSON)\n";
        assert_eq!(number(text).as_deref(), Some("1.7.1"));
        assert_eq!(number("no such file"), None);
    }
}

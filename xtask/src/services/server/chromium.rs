//! A browser. It is no server: there is nothing to start, only a program to have.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::Built;
use crate::services::install::{apt::Unpacked, on_path, output};
use crate::services::site::Site;

/// The names under which distributions install it.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let program = match NAMES.iter().find_map(|name| on_path(name)) {
        Some(program) => program,
        None => fetched(site)?,
    };
    Ok(Built {
        address: program.display().to_string(),
        version: None,
        program: None,
    })
}

fn fetched(site: &Site<'_>) -> anyhow::Result<PathBuf> {
    let file = "usr/lib/chromium/chromium";
    let package = Unpacked::with(site.line, "chromium", &["chromium"], file)?;
    package.wrapper("chromium", &package.file)
}

/// Whether it runs at all.
pub(crate) fn version(program: &Path) -> anyhow::Result<String> {
    let text = output(Command::new(program).arg("--version"))?;
    number(&text).with_context(|| format!("--version says {:?}", text.trim()))
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
        assert_eq!(number("no such file"), None);
    }
}

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, anyhow, bail};

use super::apt::Unpacked;
use super::{on_path, output, truststore};
use crate::services::files;
use crate::services::place;
use crate::services::progress::Line;

/// Kafka 4 runs on nothing older.
const OLDEST: u32 = 17;

/// A Java that is recent enough.
#[derive(Debug, Clone)]
pub(crate) struct Java {
    program: PathBuf,
    /// Set where we fetched it ourselves, so that others have to be told.
    home: Option<PathBuf>,
}

impl Java {
    /// The user's Java, or one that is fetched.
    pub(crate) fn find(line: &Line) -> anyhow::Result<Self> {
        static FOUND: OnceLock<Result<Java, String>> = OnceLock::new();
        FOUND
            .get_or_init(|| Self::look(line).map_err(|error| format!("{error:#}")))
            .clone()
            .map_err(|why| anyhow!("Java {OLDEST} or newer: {why}"))
    }

    fn look(line: &Line) -> anyhow::Result<Self> {
        files::make_folder(&place::scratch())?;
        let home = env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
        let named = home.map(|home| Path::new(&home).join("bin/java"));
        let candidates = named.into_iter().chain(on_path("java")).chain(installed());
        for program in candidates {
            if version(&program).is_ok_and(|version| version >= OLDEST) {
                return Ok(Self {
                    program,
                    home: None,
                });
            }
        }
        let file = "usr/lib/jvm/default-java/bin/java";
        let package = Unpacked::with(line, "java", &["default-jre-headless"], file)?;
        let fetched = package.file.canonicalize()?;
        let home = fetched
            .ancestors()
            .nth(2)
            .context("the package has no home for Java")?
            .to_owned();
        let program = package.wrapper("java", &fetched)?;
        let found = version(&program)?;
        if found < OLDEST {
            bail!("the package is Java {found}; put a newer one on the search path");
        }
        truststore::provide(&home)?;
        Ok(Self {
            program,
            home: Some(home),
        })
    }

    /// Writes a program that runs a class with this class path, for tests that start servers of their own.
    pub(crate) fn launcher(
        &self,
        file: &Path,
        class_path: impl AsRef<OsStr>,
        settings: &str,
    ) -> anyhow::Result<PathBuf> {
        let command = self.command(class_path);
        let quoted = |text: &OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
        let words: Vec<String> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(quoted)
            .collect();
        files::write(
            file,
            format!("#!/bin/sh\nexec {} {settings} \"$@\"\n", words.join(" ")),
        )?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
        Ok(file.to_owned())
    }

    /// A JVM that leaves nothing in the system's temporary folder.
    pub(crate) fn command(&self, class_path: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("-XX:-UsePerfData")
            .arg(temporary_folder())
            .arg("-cp")
            .arg(class_path);
        command
    }

    /// Tells a program that starts Java by itself which one.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(home) = &self.home {
            command.env("JAVA_HOME", home);
        }
        command.env(
            "MAVEN_OPTS",
            format!("-XX:-UsePerfData {}", temporary_folder()),
        )
    }
}

/// Those of the system that are not on the search path.
fn installed() -> Vec<PathBuf> {
    let homes = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    homes.map(|home| home.path().join("bin/java")).collect()
}

fn temporary_folder() -> String {
    format!("-Djava.io.tmpdir={}", place::scratch().display())
}

fn version(program: &Path) -> anyhow::Result<u32> {
    let text = output(Command::new(program).args(["-XX:-UsePerfData", "-version"]))?;
    major(&text).with_context(|| format!("cannot read the version of {}", program.display()))
}

/// The first number of `version "17.0.15"`; old ones say `"1.8.0_402"`.
fn major(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match numbers.next()?.ok()? {
        1 => numbers.next()?.ok(),
        major => Some(major),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_old_and_new_are_understood() {
        let text = "openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment\n";
        assert_eq!(major(text), Some(17));
        assert_eq!(major("java version \"1.8.0_402\""), Some(8));
        assert_eq!(major("openjdk version \"26-ea\" 2026-03-17"), Some(26));
        assert_eq!(major("sh: java: not found"), None);
    }
}

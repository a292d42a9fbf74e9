//! Versions of what is stored, and the steps from one to the next.
//!
//! A [`Format`] is a name and a version, and both are the first words of the `store` file. [`Format::bring_up`] takes a
//! directory of an earlier version to the current one, step by step, before anything else in it is read. A version
//! without a step that leads on is answered with [`Error::Format`], which is another thing than damage: nothing is
//! wrong with the directory, and another version of this program opens it.
//!
//! A change of what is stored comes with a new version, the [`Step`] that leads to it, and a fixture of it. The fixture of
//! the version before it stays in `tests/fixtures`, and is opened from then on by way of that step.

use std::path::Path;

use crate::error::Error;

/// The version of the engine's files that [`journals`](crate::journals) reads, as the engine notes it in a file of its own.
const ENGINE: u8 = 3;

/// What is kept in a directory, and how.
#[derive(Debug)]
pub struct Format {
    /// What is kept there. One word.
    pub name: &'static str,
    /// How it is written by this program.
    pub version: u32,
    /// The ways from earlier versions.
    pub steps: &'static [Step],
}

/// The way from one version to the next one.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The version that it begins with. It ends with the one after it.
    pub from: u32,
    /// Changes the files of a directory that no engine has open. It may be interrupted anywhere, and is run again from
    /// the start then: `run` must take what it left half done.
    pub run: fn(&Path) -> Result<(), Error>,
}

impl Format {
    /// How a version of it is called, which is what the `store` file begins with.
    pub(crate) fn title(&self, version: u32) -> String {
        format!("{} {version}", self.name)
    }

    /// The version that a `store` file names, if it is one of this kind.
    pub(crate) fn version_in(&self, text: &str) -> Option<u32> {
        let mut words = text.split_ascii_whitespace();
        let version = words
            .next()
            .filter(|name| *name == self.name)
            .and(words.next())?;
        let number: u32 = version.parse().ok()?;
        // Numbers are written in one way.
        text.starts_with(&format!("{} ", self.title(number)))
            .then_some(number)
    }

    /// Takes the files of a directory from one version to the current one. `reached` hears of every version on the way, and
    /// notes it.
    pub(crate) fn bring_up(
        &self,
        directory: &Path,
        from: u32,
        mut reached: impl FnMut(u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // All steps are looked up before the first is taken: half of the way leads nowhere.
        let steps: Option<Vec<_>> = (from..self.version)
            .map(|from| self.steps.iter().find(|step| step.from == from))
            .collect();
        let Some(steps) = steps.filter(|_| from <= self.version) else {
            return Err(Error::Format {
                what: directory.display().to_string(),
                found: self.title(from),
                supported: self.title(self.version),
            });
        };
        for step in steps {
            let to = step.from + 1;
            let directory_name = directory.display();
            tracing::info!(directory = %directory_name, format = self.name, from = step.from, to, "migrating a store");
            (step.run)(directory)?;
            reached(to)?;
        }
        Ok(())
    }
}

/// Fails if another version of the engine made its files. What cannot be read here is left for the engine to tell.
pub(crate) fn check_engine(log: &Path) -> Result<(), Error> {
    match std::fs::read(log.join("version")).as_deref() {
        Ok([b'F', b'J', b'L', version]) if *version != ENGINE => Err(Error::Format {
            what: log.display().to_string(),
            found: format!("fjall {version}"),
            supported: format!("fjall {ENGINE}"),
        }),
        _ => Ok(()),
    }
}

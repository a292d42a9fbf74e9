//! The directory of a store: who owns it, and what is known before the engine is opened.
//!
//! ```text
//! lock    held by the owner for as long as it lives
//! store   a line of text: the version, the identity, and a commit that must be there
//! log/    the engine's files
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checksum::checksum;
use crate::error::Error;
use crate::journals::{self, Marks};

/// A former owner in this process may still be about to let go.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// A directory that is ours until this is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// What the first words of the `store` file are.
    format: &'static str,
    /// What is known.
    pub seal: Seal,
    /// Closing the file unlocks it.
    _lock: File,
}

/// What the `store` file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Drawn when the store was made.
    pub identity: u64,
    /// What was committed when this was noted, now and then and at an orderly close: a store with less
    /// has lost something.
    pub commit: u64,
}

impl Directory {
    /// Takes the directory, and makes it if it is not there. `format` names what is kept there, and how.
    ///
    /// # Errors
    /// When somebody else has it, it is damaged, or the system says no.
    pub fn take(path: &Path, format: &'static str) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(doing(path, "making"))?;
        let path = path.canonicalize().map_err(doing(path, "finding"))?;
        let lock = lock(&path)?;
        let seal = match fs::read_to_string(path.join("store")) {
            Ok(text) => Seal::parse(&text, format).ok_or_else(|| Error::Damaged {
                what: path.join("store").display().to_string(),
                detail: "it is not what was written".to_owned(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The first file of a store: without it there is none.
                if path.join("log").exists() {
                    return Err(Error::Damaged {
                        what: path.join("store").display().to_string(),
                        detail: "it is not there, but the log is".to_owned(),
                    });
                }
                let seal = Seal {
                    identity: rand::random(),
                    commit: 0,
                };
                seal.write(&path, format)?;
                seal
            }
            Err(error) => return Err(doing(&path.join("store"), "reading")(error)),
        };
        Ok(Self {
            path,
            format,
            seal,
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the engine keeps its files.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes `log` appear as a whole or not at all: an engine that is killed while it makes its
    /// first files could not open them again.
    ///
    /// # Errors
    /// When it is gone, `make` fails, or the system says no.
    pub fn make_log(&self, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
        if self.log().exists() {
            return Ok(());
        }
        if self.seal.commit > 0 {
            return Err(Error::Damaged {
                what: self.log().display().to_string(),
                detail: "it is gone".to_owned(),
            });
        }
        let draft = self.path.join("log.new");
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(doing(&draft, "removing"))?;
        }
        make(&draft)?;
        fs::rename(&draft, self.log()).map_err(doing(&draft, "renaming"))?;
        sync_directory(&self.path)
    }

    /// Makes the journals ready for the engine: what a crash tore is noted and cut off. Answers the commit
    /// that must be there at least.
    ///
    /// # Errors
    /// When they are damaged, or the system says no.
    pub fn prepare(&mut self, marks: &dyn Marks) -> Result<u64, Error> {
        let checked = journals::check(&self.log(), marks)?;
        if checked.is_torn() {
            // What is torn tells of earlier commits, and will be gone.
            self.note(checked.durable)?;
            checked.cut()?;
        }
        Ok(self.seal.commit.max(checked.durable))
    }

    /// Fails if the last commit that was found is not the last that was ever acknowledged.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn expect(&self, least: u64, found: u64) -> Result<(), Error> {
        if found >= least {
            return Ok(());
        }
        Err(Error::Damaged {
            what: self.log().display().to_string(),
            detail: format!("commit {found} is the last, but there were {least}"),
        })
    }

    /// Notes which commit must be there from now on. It never goes back.
    ///
    /// # Errors
    /// When the system says no.
    pub fn note(&mut self, commit: u64) -> Result<(), Error> {
        if commit > self.seal.commit {
            let seal = Seal {
                commit,
                ..self.seal
            };
            seal.write(&self.path, self.format)?;
            self.seal = seal;
        }
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(doing(&path, "opening"))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse {
                    directory: directory.display().to_string(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(doing(&path, "locking")(error)),
        }
    }
}

impl Seal {
    fn text(self, format: &str) -> String {
        let Self { identity, commit } = self;
        let said = format!("{format} identity {identity:016x} commit {commit}");
        let checksum = checksum(0, said.as_bytes());
        format!("{said} checksum {checksum:08x}\n")
    }

    fn parse(text: &str, format: &str) -> Option<Self> {
        let mut words = text.strip_prefix(format)?.split_ascii_whitespace();
        let mut after = |label| (words.next()? == label).then(|| words.next())?;
        let seal = Self {
            identity: u64::from_str_radix(after("identity")?, 16).ok()?,
            commit: after("commit")?.parse().ok()?,
        };
        (seal.text(format) == text).then_some(seal)
    }

    fn write(self, directory: &Path, format: &str) -> Result<(), Error> {
        let draft = directory.join("store.new");
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(self.text(format).as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, directory.join("store"))
        };
        write().map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full {
                directory: directory.display().to_string(),
            },
            _ => doing(&draft, "writing")(error),
        })?;
        sync_directory(directory)
    }
}

/// Makes renames in a directory durable.
fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(doing(directory, "syncing"))
}

fn doing(path: &Path, verb: &str) -> impl FnOnce(io::Error) -> Error + use<> {
    let doing = format!("{verb} {}", path.display());
    move |source| Error::Io { doing, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Directory::take(folder.path(), "test 1").unwrap();
        let identity = first.seal.identity;
        assert_eq!(first.seal.commit, 0);
        first.note(77).unwrap();
        first.note(76).unwrap();
        drop(first);
        let again = Directory::take(folder.path(), "test 1").unwrap();
        let expected = Seal {
            identity,
            commit: 77,
        };
        assert_eq!(again.seal, expected);
    }

    #[test]
    fn there_is_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let first = Directory::take(folder.path(), "test 1").unwrap();
        let error = Directory::take(folder.path(), "test 1").unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        drop(first);
        Directory::take(folder.path(), "test 1").unwrap();
    }

    #[test]
    fn every_flipped_bit_of_the_store_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        Directory::take(folder.path(), "test 1")
            .unwrap()
            .note(7)
            .unwrap();
        let path = folder.path().join("store");
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, bad).unwrap();
            let error = Directory::take(folder.path(), "test 1").unwrap_err();
            let told = matches!(error, Error::Damaged { .. } | Error::Io { .. });
            assert!(told, "byte {at}: {error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        let error = Directory::take(folder.path(), "test 1").unwrap_err();
        assert!(error.to_string().contains("not there"), "{error}");
    }

    #[test]
    fn a_log_that_was_half_made_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::take(folder.path(), "test 1").unwrap();
        let failing = directory.make_log(|draft| {
            fs::create_dir(draft).unwrap();
            fs::write(draft.join("half"), "").unwrap();
            Err(Error::Full {
                directory: String::new(),
            })
        });
        assert!(failing.is_err());
        directory
            .make_log(|draft| {
                fs::create_dir(draft).unwrap();
                Ok(())
            })
            .unwrap();
        assert!(!directory.log().join("half").exists());
    }
}

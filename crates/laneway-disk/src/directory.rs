//! The directory of a store: who owns it, and what is known before the engine is opened.
//!
//! ```text
//! lock      held by the owner for as long as it lives
//! store     a line of text: the version, the identity, and a commit that must be there
//! log/      the engine's files
//! cuttings  what was cut off a journal, until it is known that it was not needed
//! ```
//!
//! Only the owner of the files may read them: the directory, if it is made here, and `log` have mode 0700, and the files
//! beside it 0600.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checksum::checksum;
use crate::error::Error;
use crate::format::{self, Format};
use crate::journals::{self, Cuttings, Marks};
use crate::manifests;
use crate::planted::planted;
use crate::varint::{self, Reader};

/// A former owner in this process may still be about to let go.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A directory that is ours until this is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// What the first words of the `store` file are.
    format: &'static Format,
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
    /// Takes the directory, and makes it if it is not there. `format` names what is kept there, and how; a directory of an
    /// earlier version is brought up to it.
    ///
    /// # Errors
    /// When another process has it, it is damaged or of a version that cannot be read, or the system says no.
    pub fn take(path: &Path, format: &'static Format) -> Result<Self, Error> {
        make_directory(path)?;
        let path = path.canonicalize().map_err(doing(path, "finding"))?;
        let lock = lock(&path)?;
        let seal = match fs::read_to_string(path.join("store")) {
            Ok(text) => Seal::read(&text, &path, format)?,
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
                seal.write(&path, &format.title(format.version))?;
                seal
            }
            // A flipped bit: the disk has answered, and with bytes that no version has written.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::Damaged {
                    what: path.join("store").display().to_string(),
                    detail: "it is not text".to_owned(),
                });
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
        make_directory(&draft)?;
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
        // Journals of another version would be taken for torn ones.
        format::check_engine(&self.log())?;
        // From an earlier attempt that did not get as far as `expect`.
        self.put_cuttings_back()?;
        manifests::check(&self.log())?;
        let checked = journals::check(&self.log(), marks)?;
        if checked.is_torn() {
            // What is torn tells of earlier commits, and will be gone.
            self.note(checked.durable)?;
            // Whether all of those commits are in tables only the engine can tell, and it reads its tables only
            // with a journal that it can read. Where they are not, what is cut off is all that is left of them.
            if let Some(cuttings) = checked.cuttings()
                && !planted("C8")
            {
                self.keep_cuttings(&cuttings)?;
            }
            checked.cut()?;
        }
        Ok(self.seal.commit.max(checked.durable))
    }

    /// Fails if the last commit that was found is not the last that was ever acknowledged. Then the journals should be as they were
    /// before `prepare`: call [`restore`](Self::restore) when the engine is closed. If all is there, what
    /// was cut off is forgotten.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn expect(&self, least: u64, found: u64) -> Result<(), Error> {
        if found >= least {
            return self.remove_cuttings();
        }
        Err(Error::Damaged {
            what: self.log().display().to_string(),
            detail: format!("commit {found} is the last, but there were {least}"),
        })
    }

    /// Puts back what [`prepare`](Self::prepare) cut off, after the engine could not be opened, or did not have what
    /// it should. For people to salvage: nothing else was changed. The engine must be closed.
    pub fn restore(&self) {
        if let Err(error) = self.put_cuttings_back() {
            tracing::error!(%error, "what was cut off a journal stays in the file cuttings");
        }
    }

    fn cuttings(&self) -> PathBuf {
        self.path.join("cuttings")
    }

    fn keep_cuttings(&self, cuttings: &Cuttings) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(cuttings.bytes.len() + 64);
        varint::put_bytes(&mut bytes, cuttings.journal.as_bytes());
        varint::put(&mut bytes, cuttings.at);
        varint::put_bytes(&mut bytes, &cuttings.bytes);
        let sum = checksum(self.seal.identity, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        replace_file(&self.path, "cuttings", &bytes)
    }

    fn put_cuttings_back(&self) -> Result<(), Error> {
        let path = self.cuttings();
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(doing(&path, "reading"))?,
        };
        let cuttings = self.read_cuttings(&bytes).ok_or_else(|| Error::Damaged {
            what: path.display().to_string(),
            detail: "it is not what was written".to_owned(),
        })?;
        let put_back = cuttings.put_back(&self.log());
        put_back.map_err(doing(&path, "putting back"))?;
        self.remove_cuttings()
    }

    fn read_cuttings(&self, bytes: &[u8]) -> Option<Cuttings> {
        let (bytes, sum) = bytes.split_last_chunk()?;
        let is_whole = checksum(self.seal.identity, bytes) == u32::from_le_bytes(*sum);
        let mut reader = Reader::new(bytes);
        let journal = std::str::from_utf8(reader.bytes().ok()?).ok()?.to_owned();
        // It names a file beside the other journals, and nothing else.
        let is_name = Path::new(&journal).file_name() == Some(journal.as_ref());
        let at = reader.number().ok()?;
        let bytes = reader.bytes().ok()?.to_vec();
        (is_whole && is_name).then_some(Cuttings { journal, at, bytes })
    }

    fn remove_cuttings(&self) -> Result<(), Error> {
        let path = self.cuttings();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(doing(&path, "removing")(error))
            }
            _ => Ok(()),
        }
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
            seal.write(&self.path, &self.format.title(self.format.version))?;
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
        .mode(0o600)
        .open(&path)
        .map_err(doing(&path, "opening"))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
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
    fn text(self, title: &str) -> String {
        let Self { identity, commit } = self;
        let said = format!("{title} identity {identity:016x} commit {commit}");
        let checksum = checksum(0, said.as_bytes());
        format!("{said} checksum {checksum:08x}\n")
    }

    /// What a `store` file says, after its directory was brought up to the current version.
    fn read(text: &str, path: &Path, format: &'static Format) -> Result<Self, Error> {
        let damaged = || Error::Damaged {
            what: path.join("store").display().to_string(),
            detail: "it is not what was written".to_owned(),
        };
        // A file that was written ends with the checksum of what is before it, whichever version wrote it; a flipped
        // bit does not.
        let is_written = text
            .trim_end()
            .rsplit_once(" checksum ")
            .is_some_and(|(said, sum)| sum == format!("{:08x}", checksum(0, said.as_bytes())));
        let version = format.version_in(text).filter(|_| is_written);
        let version = version.ok_or_else(damaged)?;
        let seal = Self::parse(text, &format.title(version));
        format.bring_up(path, version, |reached| {
            // IMPORTANT: after each step. A step is not made for what a later one left.
            let seal = seal.ok_or_else(damaged)?;
            seal.write(path, &format.title(reached))
        })?;
        seal.ok_or_else(damaged)
    }

    fn parse(text: &str, title: &str) -> Option<Self> {
        let mut words = text.strip_prefix(title)?.split_ascii_whitespace();
        let mut after = |label| (words.next()? == label).then(|| words.next())?;
        let seal = Self {
            identity: u64::from_str_radix(after("identity")?, 16).ok()?,
            commit: after("commit")?.parse().ok()?,
        };
        (seal.text(title) == text).then_some(seal)
    }

    fn write(self, directory: &Path, title: &str) -> Result<(), Error> {
        replace_file(directory, "store", self.text(title).as_bytes())
    }
}

/// Makes a directory that only its owner may look into, and those above it that are not there. All of them are durable
/// then: a power cut must not take away the whole store because its name was never written down.
pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    let mut missing = Vec::new();
    let mut at = Some(path);
    while let Some(some) = at.filter(|some| !some.as_os_str().is_empty() && !some.exists()) {
        missing.push(some);
        at = some.parent();
    }
    for path in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(doing(path, "making")(error));
            }
            _ => {}
        }
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Puts a file into a directory as a whole or not at all, in the place of the one of that name. It is durable then.
///
/// # Errors
/// When the disk is full, or the system says no.
pub fn replace_file(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let draft = directory.join(format!("{name}.new"));
    let write = || {
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, directory.join(name))
    };
    write().map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full {
            directory: directory.display().to_string(),
        },
        _ => doing(&draft, "writing")(error),
    })?;
    sync_directory(directory)
}

/// Removes a file from a directory, if it is there. That is durable then.
///
/// # Errors
/// When the system says no.
pub fn remove_file(directory: &Path, name: &str) -> Result<(), Error> {
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(doing(&path, "removing")(error))
        }
        _ => sync_directory(directory),
    }
}

/// Makes renames in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), Error> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(directory.to_owned()));
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
    use crate::format::Step;

    thread_local! {
        /// Which directories this thread has synced.
        pub(super) static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const {
            std::cell::RefCell::new(Vec::new())
        };
    }

    const TEST: Format = Format {
        name: "test",
        version: 1,
        steps: &[],
    };

    /// Two versions later.
    const LATER: Format = Format {
        name: "test",
        version: 3,
        steps: &[
            Step {
                from: 1,
                run: |path| append(path, "one to two\n"),
            },
            Step {
                from: 2,
                run: |path| append(path, "two to three\n"),
            },
        ],
    };

    fn append(path: &Path, line: &str) -> Result<(), Error> {
        let path = path.join("steps");
        let file = File::options().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(doing(&path, "writing"))
    }

    #[test]
    fn a_directory_of_an_earlier_version_is_brought_up_step_by_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Directory::take(folder.path(), &TEST).unwrap();
        first.note(7).unwrap();
        let seal = first.seal;
        drop(first);
        for _ in 0..2 {
            let later = Directory::take(folder.path(), &LATER).unwrap();
            assert_eq!(later.seal, seal);
            let steps = fs::read_to_string(folder.path().join("steps")).unwrap();
            assert_eq!(steps, "one to two\ntwo to three\n", "each is taken once");
        }
        let text = fs::read_to_string(folder.path().join("store")).unwrap();
        assert!(text.starts_with("test 3 identity "), "{text}");
    }

    #[test]
    fn a_directory_of_a_version_that_no_step_leads_from_is_not_told_as_damaged() {
        const GAP: Format = Format {
            name: "test",
            version: 4,
            steps: LATER.steps,
        };
        let folder = tempfile::tempdir().unwrap();
        drop(Directory::take(folder.path(), &LATER).unwrap());
        let before = fs::read(folder.path().join("store")).unwrap();
        for (format, supported) in [(&TEST, "test 1"), (&GAP, "test 4")] {
            let error = Directory::take(folder.path(), format).unwrap_err();
            let Error::Format {
                found,
                supported: reads,
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!((found.as_str(), reads.as_str()), ("test 3", supported));
            assert_eq!(fs::read(folder.path().join("store")).unwrap(), before);
        }
        assert!(!folder.path().join("steps").exists());
    }

    /// Whatever bit of its first file flips, also one that leaves no text.
    #[test]
    fn a_flipped_bit_of_the_seal_is_damage_or_another_format_and_no_failure_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        drop(Directory::take(folder.path(), &TEST).unwrap());
        let file = folder.path().join("store");
        let before = fs::read(&file).unwrap();
        for bit in 0..before.len() * 8 {
            let mut bytes = before.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &bytes).unwrap();
            match Directory::take(folder.path(), &TEST) {
                Err(Error::Damaged { .. } | Error::Format { .. }) => {}
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_step_that_fails_is_taken_again_and_those_before_it_are_not() {
        const FAILING: Format = Format {
            name: "test",
            version: 3,
            steps: &[
                LATER.steps[0],
                Step {
                    from: 2,
                    run: |path| {
                        Err(Error::Full {
                            directory: path.display().to_string(),
                        })
                    },
                },
            ],
        };
        let folder = tempfile::tempdir().unwrap();
        drop(Directory::take(folder.path(), &TEST).unwrap());
        let error = Directory::take(folder.path(), &FAILING).unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error}");
        drop(Directory::take(folder.path(), &LATER).unwrap());
        let steps = fs::read_to_string(folder.path().join("steps")).unwrap();
        assert_eq!(steps, "one to two\ntwo to three\n");
    }

    #[test]
    fn files_of_another_engine_are_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = Directory::take(folder.path(), &TEST).unwrap();
        directory.make_log(|_| Ok(())).unwrap();
        let journal = directory.log().join("0.jnl");
        fs::write(&journal, "of another kind").unwrap();
        fs::write(directory.log().join("version"), b"FJL\x04").unwrap();
        let error = directory.prepare(&Blind).unwrap_err();
        assert!(
            matches!(&error, Error::Format { found, .. } if found == "fjall 4"),
            "{error}"
        );
        assert_eq!(fs::read(&journal).unwrap(), b"of another kind");
    }

    #[test]
    fn what_was_noted_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Directory::take(folder.path(), &TEST).unwrap();
        let identity = first.seal.identity;
        assert_eq!(first.seal.commit, 0);
        first.note(77).unwrap();
        first.note(76).unwrap();
        drop(first);
        let again = Directory::take(folder.path(), &TEST).unwrap();
        let expected = Seal {
            identity,
            commit: 77,
        };
        assert_eq!(again.seal, expected);
    }

    #[test]
    fn there_is_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let first = Directory::take(folder.path(), &TEST).unwrap();
        let error = Directory::take(folder.path(), &TEST).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        drop(first);
        Directory::take(folder.path(), &TEST).unwrap();
    }

    #[test]
    fn every_flipped_bit_of_the_store_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        Directory::take(folder.path(), &TEST)
            .unwrap()
            .note(7)
            .unwrap();
        let path = folder.path().join("store");
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, bad).unwrap();
            let error = Directory::take(folder.path(), &TEST).unwrap_err();
            let told = matches!(error, Error::Damaged { .. } | Error::Io { .. });
            assert!(told, "byte {at}: {error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        let error = Directory::take(folder.path(), &TEST).unwrap_err();
        assert!(error.to_string().contains("not there"), "{error}");
    }

    #[test]
    fn a_log_that_was_half_made_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::take(folder.path(), &TEST).unwrap();
        let failing = directory.make_log(|draft| {
            fs::write(draft.join("half"), "").unwrap();
            Err(Error::Full {
                directory: String::new(),
            })
        });
        assert!(failing.is_err());
        directory
            .make_log(|draft| {
                assert!(draft.is_dir());
                Ok(())
            })
            .unwrap();
        assert!(!directory.log().join("half").exists());
    }

    #[test]
    fn only_the_owner_can_read_what_is_made() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("above").join("store");
        let directory = Directory::take(&path, &TEST).unwrap();
        directory.make_log(|_| Ok(())).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        for directory in [folder.path().join("above"), path.clone(), path.join("log")] {
            assert_eq!(mode(&directory), 0o700, "{}", directory.display());
        }
        for file in ["lock", "store"] {
            assert_eq!(mode(&path.join(file)), 0o600, "{file}");
        }
    }

    #[test]
    fn every_directory_that_is_made_is_written_down_in_the_one_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let (above, store) = (folder.path().join("a/b"), folder.path().join("a/b/c"));
        SYNCED.take();
        make_directory(&store).unwrap();
        let synced = SYNCED.take();
        assert_eq!(synced, [folder.path(), &folder.path().join("a"), &above]);
        // What is there already costs nothing.
        make_directory(&store).unwrap();
        assert!(SYNCED.take().is_empty());
    }

    #[test]
    fn a_directory_is_made_wherever_it_is_named_from() {
        let folder = tempfile::tempdir().unwrap();
        make_directory(folder.path()).unwrap();
        make_directory(&folder.path().join("a/./b/")).unwrap();
        assert!(folder.path().join("a").join("b").is_dir());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make_directory(&file.join("below")).is_err());
    }

    /// Marks that see nothing: whatever is in a journal is torn.
    struct Blind;

    impl Marks for Blind {
        fn commit_in(&self, _: &[u8], _: &[u8]) -> Option<u64> {
            None
        }

        fn latest_row(&self, bytes: &[u8]) -> u64 {
            bytes.first().copied().map_or(0, u64::from)
        }
    }

    #[test]
    fn what_was_cut_off_in_vain_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = Directory::take(folder.path(), &TEST).unwrap();
        directory.make_log(|_| Ok(())).unwrap();
        let journal = directory.log().join("7.jnl");
        let bytes = [&[5; 3000][..], &[0; 1000]].concat();
        fs::write(&journal, &bytes).unwrap();

        // It tells of commit 4, which is not found.
        assert_eq!(directory.prepare(&Blind).unwrap(), 4);
        assert_eq!(fs::read(&journal).unwrap(), []);
        directory.expect(4, 3).unwrap_err();
        directory.restore();
        assert!(fs::read(&journal).unwrap().starts_with(&[5; 3000]));

        // A process that dies before it knows leaves it to the next one.
        directory.prepare(&Blind).unwrap();
        assert_eq!(fs::read(&journal).unwrap(), []);
        drop(directory);
        let mut directory = Directory::take(folder.path(), &TEST).unwrap();
        assert_eq!(directory.prepare(&Blind).unwrap(), 4);
        let left = directory.cuttings();
        assert!(left.exists());

        // It is found.
        directory.expect(4, 4).unwrap();
        assert!(!left.exists());
        directory.restore();
        assert_eq!(fs::read(&journal).unwrap(), []);
    }
}

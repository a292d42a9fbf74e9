//! The engine's journals, seen from outside: what a crash tore is cut off, damage is told apart from
//! it, and a witness knows what became durable.
//!
//! Three things about the engine make this necessary.
//!
//! - It takes the first journal entry that it cannot read for the place where a crash interrupted
//!   it, and cuts off all that comes after. Damage further up would silently take acknowledged
//!   records with it.
//! - After a power cut, pages in the middle of the last batch may be missing while its end is there.
//!   It takes that for damage, and refuses to open.
//! - When one of its background threads fails it says only that it did.
//!
//! So [`check`] reads the journals before the engine does. What follows the last whole batch was
//! never acknowledged, as long as it belongs to one commit: the next one is written only when the
//! one before it is synced. Our rows carry the number of their commit, which settles it.
//!
//! And [`Journals`] holds a descriptor for each journal all along: the kernel reports a failed
//! write-back once to every one of them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use memchr::memmem;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::planted::planted;
use crate::varint::{Broken, Reader};

/// What the rows of a store tell about its commits.
pub trait Marks {
    /// The number of the commit, if this is the row that has it. Only commits that are synced have one.
    fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64>;

    /// The latest commit of which a whole row is among these bytes, or 0.
    fn latest_row(&self, bytes: &[u8]) -> u64;
}

/// What the journals hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The commit that must be there: of the one after it something was found, whole or torn, and it
    /// is written only when this one is synced.
    pub durable: u64,
    torn: Option<Torn>,
}

/// What a crash left of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Torn {
    journal: PathBuf,
    /// How many bytes before it are good.
    whole: u64,
    /// What follows them, but for the zeros that were never written.
    rest: Vec<u8>,
}

/// Reads all journals, and tells what a crash tore from the last one apart from damage.
///
/// # Errors
/// When they are damaged, or cannot be read.
pub fn check(directory: &Path, marks: &dyn Marks) -> Result<Checked, Error> {
    let journals = list(directory).map_err(reading(directory))?;
    let mut scan = Scan::new(marks);
    let (mut latest, mut torn) = (0, None);
    for (at, (_, path)) in journals.iter().enumerate() {
        // 64 MiB each, unless one batch was larger.
        let bytes = read_data(path).map_err(reading(path))?;
        let whole = scan.whole_batches(&bytes);
        let rest = &bytes[whole..];
        // A new journal is filled with zeros.
        if is_zero(rest) {
            continue;
        }
        let (first, last) = whole_commits(rest, marks).unwrap_or((u64::MAX, 0));
        latest = marks.latest_row(rest).max(last);
        let is_last = at + 1 == journals.len();
        // A commit that another one follows was synced, and so was all before it. The second test is for a journal
        // whose very first commit cannot be read.
        let is_acknowledged = scan.commit.is_some_and(|commit| latest > commit + 1)
            || (latest > first && !planted("C8"));
        if !is_last || is_acknowledged || scan.is_broken {
            return Err(Error::Damaged {
                what: path.display().to_string(),
                detail: format!("byte {whole} and what follows cannot be read"),
            });
        }
        torn = Some(Torn {
            journal: path.clone(),
            whole: whole as u64,
            rest: rest.to_vec(),
        });
    }
    Ok(Checked {
        durable: scan.commit.unwrap_or(0).max(latest.saturating_sub(1)),
        torn,
    })
}

impl Checked {
    /// Whether a crash tore something.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// What will be cut off, so that it can be put back.
    #[must_use]
    pub fn cuttings(&self) -> Option<Cuttings> {
        let torn = self.torn.as_ref()?;
        Some(Cuttings {
            journal: torn.journal.file_name()?.to_str()?.to_owned(),
            at: torn.whole,
            bytes: torn.rest.clone(),
        })
    }

    /// Cuts off what a crash tore. Whatever is known from it must be noted before.
    ///
    /// # Errors
    /// When the system says no.
    pub fn cut(&self) -> Result<(), Error> {
        let Some(Torn { journal, whole, .. }) = &self.torn else {
            return Ok(());
        };
        tracing::info!(journal = %journal.display(), whole, "cutting off an unfinished commit");
        let cut = |file: File| {
            file.set_len(*whole)?;
            file.sync_all()
        };
        let file = File::options().write(true).open(journal);
        file.and_then(cut).map_err(reading(journal))
    }
}

/// What was cut off the end of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuttings {
    /// The name of the journal.
    pub journal: String,
    /// Where it was cut.
    pub at: u64,
    /// The bytes from there to the end.
    pub bytes: Vec<u8>,
}

impl Cuttings {
    /// Puts it back where it was, unless the engine has gone on since.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn put_back(&self, directory: &Path) -> io::Result<()> {
        let path = directory.join(&self.journal);
        let mut file = File::options().write(true).open(&path)?;
        let newest = list(directory)?.pop();
        let is_newest = newest.is_some_and(|(_, newest)| newest == path);
        let as_it_was = read_data(&path)?.len() as u64 <= self.at;
        if !is_newest || !as_it_was {
            return Err(io::Error::other("the journal has gone on since"));
        }
        file.seek(io::SeekFrom::Start(self.at))?;
        file.write_all(&self.bytes)?;
        file.sync_all()
    }
}

pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let doing = format!("reading {}", path.display());
    move |source| Error::Io { doing, source }
}

/// Reads a file but for the hole at its end: most of a new journal was never written.
fn read_data(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut end = 0;
    loop {
        match seek(&file, SeekFrom::Data(end)) {
            Ok(data) => end = seek(&file, SeekFrom::Hole(data))?,
            Err(Errno::NXIO) => break,
            // A file system that does not know.
            Err(_) => {
                end = u64::MAX;
                break;
            }
        }
    }
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(end).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes
        .chunks(ZEROS.len())
        .all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// The first and the last commit of which a whole batch is among these bytes, other than at their front.
/// There are commits without rows, and rows that were moved tell of earlier commits than the one they are in.
fn whole_commits(bytes: &[u8], marks: &dyn Marks) -> Option<(u64, u64)> {
    let ends = memmem::find_iter(bytes, b"FJL\x03\x01").map(|at| &bytes[at + 4..]);
    let commits = ends.filter_map(|bytes| {
        let mut scan = Scan::new(marks);
        scan.batch(bytes, &mut Reader::new(bytes)).ok()?;
        scan.commit
    });
    commits.fold(None, |range, commit| {
        let (first, last) = range.unwrap_or((commit, commit));
        Some((first.min(commit), last.max(commit)))
    })
}

/// Reads any bytes as a journal: how many of them are whole batches, and the last commit among those.
/// Never panics.
pub fn read(bytes: &[u8], marks: &dyn Marks) -> (usize, Option<u64>) {
    let mut scan = Scan::new(marks);
    let whole = scan.whole_batches(bytes);
    let rest = &bytes[whole..];
    let _ = (
        is_zero(rest),
        marks.latest_row(rest),
        whole_commits(rest, marks),
    );
    (whole, scan.commit)
}

/// Follows the journals through their batches.
///
/// ```text
/// batch: 1 items:u32 seqno:u64, items × item, 3 xxh3_64(items):u64 "FJL" 3
/// item:  2 kind:u8 compression:u8 keyspace:u64 key_length:u16 length:u32 stored_length:u32 key value
///     or 4 keyspace:u64                                                  all numbers little-endian
/// ```
struct Scan<'a> {
    marks: &'a dyn Marks,
    /// The last synced commit.
    commit: Option<u64>,
    /// The number of the last batch. They only grow.
    seqno: Option<u64>,
    /// Whether a batch that is whole had a number that did not (no checksum covers them), or is a
    /// commit that does not follow the one before it.
    is_broken: bool,
}

impl<'a> Scan<'a> {
    fn new(marks: &'a dyn Marks) -> Self {
        Self {
            marks,
            commit: None,
            seqno: None,
            is_broken: false,
        }
    }

    /// How many of the bytes are whole batches.
    fn whole_batches(&mut self, bytes: &[u8]) -> usize {
        let mut reader = Reader::new(bytes);
        loop {
            let end = reader.position();
            if self.batch(bytes, &mut reader).is_err() {
                return end;
            }
        }
    }

    fn batch(&mut self, bytes: &[u8], reader: &mut Reader<'_>) -> Result<(), Broken> {
        let broken = Broken {
            at: reader.position(),
        };
        let expect = |is_so: bool| if is_so { Ok(()) } else { Err(broken) };
        expect(reader.take(1)? == [1])?;
        let count = u32::from_le_bytes(reader.array()?);
        let seqno = u64::from_le_bytes(reader.array()?);
        let items = reader.position();
        let mut commit = None;
        for _ in 0..count {
            match reader.take(1)? {
                [2] => {
                    let [_kind, compression] = reader.array()?;
                    expect(compression == 0)?;
                    let _keyspace: [u8; 8] = reader.array()?;
                    let key_length = u16::from_le_bytes(reader.array()?);
                    let length = u32::from_le_bytes(reader.array()?);
                    expect(length == u32::from_le_bytes(reader.array()?))?;
                    let key = reader.take(usize::from(key_length))?;
                    let value = reader.take(length as usize)?;
                    commit = commit.or_else(|| self.marks.commit_in(key, value));
                }
                [4] => drop(reader.array::<8>()?),
                _ => return Err(broken),
            }
        }
        let checksum = xxh3_64(&bytes[items..reader.position()]);
        expect(reader.take(1)? == [3])?;
        expect(u64::from_le_bytes(reader.array()?) == checksum)?;
        expect(reader.take(4)? == b"FJL\x03")?;
        let went_back = self.seqno.is_some_and(|last| seqno <= last);
        let is_next = |commit| self.commit.is_none_or(|last| commit == last + 1);
        self.is_broken = went_back || !commit.is_none_or(is_next);
        expect(!self.is_broken)?;
        self.seqno = Some(seqno);
        self.commit = commit.or(self.commit);
        Ok(())
    }
}

/// The journals of a directory, in the order in which they were begun.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".jnl")?.parse().ok());
        if let Some(number) = number {
            journals.push((number, path));
        }
    }
    journals.sort_unstable();
    Ok(journals)
}

/// Open descriptors of the journals that the engine may still need.
#[derive(Debug)]
pub struct Journals {
    directory: PathBuf,
    newest: u64,
    held: Vec<Held>,
    /// How a journal is opened.
    open: fn(&Path) -> io::Result<File>,
}

#[derive(Debug)]
struct Held {
    number: u64,
    path: PathBuf,
    file: File,
}

/// Why nothing was made durable.
#[derive(Debug)]
pub enum SyncError {
    /// The process has no free descriptor to open a newer journal with. Nothing was tried, so nothing has
    /// failed: it can be tried again.
    NoDescriptor(io::Error),
    /// The system did not sync. What is on the disk is unknown then, and another try proves nothing.
    Failed(io::Error),
}

impl Journals {
    /// Takes hold of those that are there.
    ///
    /// # Errors
    /// When the system says no.
    pub fn hold(directory: &Path) -> io::Result<Self> {
        let mut journals = Self {
            directory: directory.to_owned(),
            newest: 0,
            held: Vec::new(),
            open: |path| File::open(path),
        };
        for (number, path) in list(directory)? {
            journals.newest = number;
            let file = File::open(&path)?;
            journals.held.push(Held { number, path, file });
        }
        Ok(journals)
    }

    /// Makes durable what was written since the last call.
    ///
    /// Through our own descriptors: the engine syncs its own in the background as well, and a failure
    /// is told only once to each.
    ///
    /// # Errors
    /// When there is no descriptor, or what the system says.
    pub fn sync(&mut self, sync: impl Fn(&File) -> io::Result<()>) -> Result<(), SyncError> {
        let written = self.newest;
        self.follow().map_err(|error| {
            if is_want_of_descriptors(&error) && !planted("delay-descriptors") {
                SyncError::NoDescriptor(error)
            } else {
                SyncError::Failed(error)
            }
        })?;
        let mut held = self.held.iter().filter(|held| held.number >= written);
        held.try_for_each(|held| sync(&held.file))
            .map_err(SyncError::Failed)
    }

    /// Takes hold of the journals that were begun since. All of them, or none if it fails.
    fn follow(&mut self) -> io::Result<()> {
        if planted("A2") || planted("delay-descriptors") {
            return self.follow_one_by_one();
        }
        // Again while newer ones are begun: the last of them has what is to be synced.
        while !self.is_newest_still()? {
            let mut begun = Vec::new();
            for (number, path) in list(&self.directory)? {
                if number <= self.newest {
                    continue;
                }
                match (self.open)(&path) {
                    Ok(file) => begun.push(Held { number, path, file }),
                    // All of it got into tables meanwhile, which the engine has synced.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            let Some(newest) = begun.last() else {
                return Err(io::Error::other("the newest journal is gone"));
            };
            self.newest = newest.number;
            // The engine removes a journal when all of it is in tables.
            self.held.retain(|held| held.path.exists());
            self.held.extend(begun);
        }
        Ok(())
    }

    /// Whether the newest journal that is held is the one that the engine writes to. This takes no descriptor,
    /// and is asked for every sync.
    ///
    /// The engine begins journals in the order of their numbers and removes them in that order, and the one that it
    /// writes to is always there. So if the next one is not there, and then the newest of ours is, there
    /// was no later one in between. That the next one is not there proves nothing by itself: it may have
    /// come and gone.
    pub(crate) fn is_newest_still(&self) -> io::Result<bool> {
        let path = |number: u64| self.directory.join(format!("{number}.jnl"));
        Ok(!path(self.newest + 1).try_exists()? && path(self.newest).try_exists()?)
    }

    /// What `follow` was once: it never got past a number that had come and gone.
    fn follow_one_by_one(&mut self) -> io::Result<()> {
        loop {
            let number = self.newest + 1;
            let path = self.directory.join(format!("{number}.jnl"));
            match File::open(&path) {
                Ok(file) => {
                    self.newest = number;
                    self.held.retain(|held| held.path.exists());
                    self.held.push(Held { number, path, file });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Fails if any journal ever failed to reach the disk since it is held.
    ///
    /// # Errors
    /// What the system says.
    pub fn verify(&self) -> io::Result<()> {
        let mut held = self.held.iter().filter(|held| held.path.exists());
        held.try_for_each(|held| held.file.sync_data())
    }
}

/// Whether an error says that the process, or the machine, has no free descriptor.
#[must_use]
pub fn is_want_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A row with the key `commit` has the number of its commit as text.
    struct Plain;

    impl Marks for Plain {
        fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64> {
            let text = std::str::from_utf8(value).ok()?;
            text.parse().ok().filter(|_| key == b"commit")
        }

        fn latest_row(&self, _: &[u8]) -> u64 {
            0
        }
    }

    /// What the engine writes for three commits: rows that are set and removed in two keyspaces, and a keyspace that
    /// is emptied.
    fn journal_of_the_engine() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let database = crate::Database::open(folder.path(), 1 << 20).unwrap();
        let options = fjall::KeyspaceCreateOptions::default;
        let rows = database.keyspace("rows", options).unwrap();
        let others = database.keyspace("others", options).unwrap();
        let mut batch = database.batch();
        batch.insert(&rows, "key", "value");
        batch.insert(&others, "commit", "1");
        batch.commit().unwrap();
        let mut batch = database.batch();
        batch.remove(&rows, "key");
        batch.insert(&rows, "long", "and so on ".repeat(50));
        batch.insert(&others, "commit", "2");
        batch.commit().unwrap();
        rows.clear().unwrap();
        let mut batch = database.batch();
        batch.insert(&others, "commit", "3");
        batch.commit().unwrap();
        let mut bytes = read_data(&folder.path().join("0.jnl")).unwrap();
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0);
        bytes.truncate(bytes.len() - zeros.count());
        bytes
    }

    #[test]
    fn the_engine_writes_the_journal_that_is_read_here() {
        let fixture = fixtures::bytes("fjall-journal-3.hex", journal_of_the_engine);
        assert_eq!(read(&fixture, &Plain), (fixture.len(), Some(3)));
        assert_eq!(
            journal_of_the_engine(),
            fixture,
            "the engine writes another journal than `Scan` was made for: compare its format with that of `Scan`, and \
             pin the version that was compared"
        );
        // No checksum covers the numbers of batches; every other byte is noticed.
        for at in 0..fixture.len() {
            let mut bytes = fixture.clone();
            bytes[at] ^= 1;
            let (whole, commit) = read(&bytes, &Plain);
            assert!(whole < fixture.len() || commit == Some(3), "byte {at}");
        }
    }

    #[test]
    fn new_journals_are_held_and_old_ones_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: u64| folder.path().join(format!("{number}.jnl"));
        fs::write(path(4), "").unwrap();
        let mut journals = Journals::hold(folder.path()).unwrap();
        fs::write(path(5), "").unwrap();
        journals.follow().unwrap();
        assert_eq!(journals.held.len(), 2);
        fs::remove_file(path(4)).unwrap();
        fs::write(path(6), "").unwrap();
        journals.follow().unwrap();
        assert_eq!(journals.held.len(), 2);
        journals.verify().unwrap();
    }

    /// What is synced, by number.
    fn synced(journals: &mut Journals) -> Vec<u64> {
        journals.sync(|_| Ok(())).unwrap();
        let held = journals.held.iter().map(|held| held.number);
        held.collect()
    }

    #[test]
    fn the_newest_journal_is_synced_although_those_between_have_come_and_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: u64| folder.path().join(format!("{number}.jnl"));
        fs::write(path(4), "").unwrap();
        let mut journals = Journals::hold(folder.path()).unwrap();
        assert_eq!(synced(&mut journals), [4]);
        for newest in [6, 7, 9, 14] {
            fs::write(path(newest), "").unwrap();
            for old in 4..newest {
                let _ = fs::remove_file(path(old));
            }
            assert_eq!(synced(&mut journals), [newest]);
        }
    }

    #[test]
    fn a_failed_sync_is_final_and_a_lack_of_descriptors_is_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("4.jnl"), "").unwrap();
        let mut journals = Journals::hold(folder.path()).unwrap();
        let broken = |_: &File| Err(io::Error::other("broken"));
        assert!(matches!(journals.sync(broken), Err(SyncError::Failed(_))));
        for errno in [Errno::MFILE, Errno::NFILE] {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            assert!(is_want_of_descriptors(&error), "{error}");
            // Whatever it says, a sync that failed has failed.
            let failed = journals.sync(|_| Err(io::Error::from_raw_os_error(errno.raw_os_error())));
            assert!(matches!(failed, Err(SyncError::Failed(_))));
        }
        assert!(!is_want_of_descriptors(&io::Error::other("broken")));

        // A newer journal cannot be opened: nothing is synced, and nothing has failed.
        fs::write(folder.path().join("5.jnl"), "").unwrap();
        journals.open = |_| Err(Errno::MFILE.into());
        let synced = Cell::new(0);
        let sync = |_: &File| {
            synced.set(synced.get() + 1);
            Ok(())
        };
        for _ in 0..2 {
            let refused = journals.sync(sync);
            assert!(matches!(refused, Err(SyncError::NoDescriptor(_))));
        }
        assert_eq!((synced.get(), journals.newest), (0, 4));
        journals.open = |path| File::open(path);
        journals.sync(sync).unwrap();
        assert_eq!((synced.get(), journals.newest), (2, 5));
    }
}

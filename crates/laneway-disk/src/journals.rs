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
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use memchr::memmem;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
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
        latest = marks.latest_row(rest).max(latest_batch(rest, marks));
        let is_last = at + 1 == journals.len();
        let is_acknowledged = scan.commit.is_some_and(|commit| latest > commit + 1);
        if !is_last || is_acknowledged || scan.is_broken {
            return Err(Error::Damaged {
                what: path.display().to_string(),
                detail: format!("byte {whole} and what follows cannot be read"),
            });
        }
        torn = Some(Torn {
            journal: path.clone(),
            whole: whole as u64,
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

    /// Cuts off what a crash tore. Whatever is known from it must be noted before.
    ///
    /// # Errors
    /// When the system says no.
    pub fn cut(&self) -> Result<(), Error> {
        let Some(Torn { journal, whole }) = &self.torn else {
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

fn reading(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
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

/// The latest commit of which a whole batch is among these bytes, other than at their front, or 0.
/// There are commits without rows.
fn latest_batch(bytes: &[u8], marks: &dyn Marks) -> u64 {
    let ends = memmem::find_iter(bytes, b"FJL\x03\x01").map(|at| &bytes[at + 4..]);
    let commits = ends.filter_map(|bytes| {
        let mut scan = Scan::new(marks);
        scan.batch(bytes, &mut Reader::new(bytes)).ok()?;
        scan.commit
    });
    commits.max().unwrap_or(0)
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
        latest_batch(rest, marks),
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
fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
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
}

#[derive(Debug)]
struct Held {
    number: u64,
    path: PathBuf,
    file: File,
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
    /// What the system says.
    pub fn sync(&mut self, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        let written = self.newest;
        self.follow()?;
        let mut held = self.held.iter().filter(|held| held.number >= written);
        held.try_for_each(|held| sync(&held.file))
    }

    /// Takes hold of the journals that were begun since.
    fn follow(&mut self) -> io::Result<()> {
        loop {
            let number = self.newest + 1;
            let path = self.directory.join(format!("{number}.jnl"));
            match File::open(&path) {
                Ok(file) => {
                    self.newest = number;
                    // The engine removes a journal when all of it is in tables.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

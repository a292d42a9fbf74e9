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

use super::catalog::{self, Key};
use super::row::{self, Row};
use super::varint::{Broken, Reader};
use crate::broker::BrokerError;

/// What the journals hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// The commit that must be there: of the one after it something was found, whole or torn, and it
    /// is written only when this one is synced.
    pub(super) durable: u64,
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
pub(super) fn check(directory: &Path, identity: u64) -> Result<Checked, BrokerError> {
    let journals = list(directory).map_err(reading(directory))?;
    let mut scan = Scan::new(identity);
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
        latest = latest_row(rest, identity).max(latest_batch(rest, identity));
        let is_last = at + 1 == journals.len();
        let is_acknowledged = scan.commit.is_some_and(|commit| latest > commit + 1);
        if !is_last || is_acknowledged || scan.is_broken {
            return Err(BrokerError::Damaged {
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
    pub(super) fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Cuts off what a crash tore. Whatever is known from it must be noted before.
    pub(super) fn cut(&self) -> Result<(), BrokerError> {
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

fn reading(path: &Path) -> impl FnOnce(io::Error) -> BrokerError + use<> {
    let doing = format!("reading {}", path.display());
    move |source| BrokerError::Io { doing, source }
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

/// The latest commit of which a whole row is among these bytes, or 0.
fn latest_row(bytes: &[u8], identity: u64) -> u64 {
    let finder = memmem::Finder::new(&row::MAGIC);
    let (mut latest, mut at) = (0, 0);
    while let Some(found) = finder.find(&bytes[at..]) {
        at += found;
        match Row::decode_front(&bytes[at..], identity) {
            Ok((row, length)) => {
                latest = latest.max(row.head.commit);
                at += length;
            }
            Err(_) => at += 1,
        }
    }
    latest
}

/// The latest commit of which a whole batch is among these bytes, other than at their front, or 0.
/// There are commits without rows.
fn latest_batch(bytes: &[u8], identity: u64) -> u64 {
    let ends = memmem::find_iter(bytes, b"FJL\x03\x01").map(|at| &bytes[at + 4..]);
    let commits = ends.filter_map(|bytes| {
        let mut scan = Scan::new(identity);
        scan.batch(bytes, &mut Reader::new(bytes)).ok()?;
        scan.commit
    });
    commits.max().unwrap_or(0)
}

/// Reads any bytes as a journal.
#[cfg(any(test, fuzzing))]
pub(super) fn probe(bytes: &[u8], identity: u64) {
    let whole = Scan::new(identity).whole_batches(bytes);
    let rest = &bytes[whole..];
    let _ = (
        is_zero(rest),
        latest_row(rest, identity),
        latest_batch(rest, identity),
    );
}

/// Follows the journals through their batches.
///
/// ```text
/// batch: 1 items:u32 seqno:u64, items × item, 3 xxh3_64(items):u64 "FJL" 3
/// item:  2 kind:u8 compression:u8 keyspace:u64 key_length:u16 length:u32 stored_length:u32 key value
///     or 4 keyspace:u64                                                  all numbers little-endian
/// ```
struct Scan {
    identity: u64,
    /// The last synced commit.
    commit: Option<u64>,
    /// The number of the last batch. They only grow.
    seqno: Option<u64>,
    /// Whether a batch that is whole had a number that did not (no checksum covers them), or is a
    /// commit that does not follow the one before it.
    is_broken: bool,
}

impl Scan {
    fn new(identity: u64) -> Self {
        Self {
            identity,
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
                    commit = commit.or_else(|| self.commit_in(key, value));
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

    /// The number of the commit, if this is the catalog row that has it.
    fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        if Key::decode(key) != Ok(Key::Commit) {
            return None;
        }
        let value = catalog::unsealed(key, value, self.identity)?;
        let [commit] = catalog::read_numbers(value).ok()?;
        Some(commit)
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
pub(super) struct Journals {
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
    pub(super) fn hold(directory: &Path) -> io::Result<Self> {
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
    pub(super) fn sync(&mut self, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
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
    pub(super) fn verify(&self) -> io::Result<()> {
        let mut held = self.held.iter().filter(|held| held.path.exists());
        held.try_for_each(|held| held.file.sync_data())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::batch::Batch;
    use super::super::disk::RealDisk;
    use super::super::engine::{Engine, row_key};
    use super::super::row::{Chunk, Head};
    use super::*;
    use crate::record::Record;

    const IDENTITY: u64 = 9;

    fn row_of(commit: u64, size: usize) -> Vec<u8> {
        let head = Head {
            topic: 0,
            partition: 0,
            first: commit,
            count: 1,
            commit,
            size_before: 0,
            size: 0,
        };
        let mut bytes = Vec::new();
        let record = Record {
            payload: vec![7; size].into(),
            ..Record::default()
        };
        let chunks = Chunk::of(&[Arc::new(record)]);
        row::put(&mut bytes, &head, &chunks[0].bytes, IDENTITY);
        bytes
    }

    /// A journal of the engine itself with three commits, and where each of them ends. Without the
    /// zeros that follow, to be quick.
    fn journal(directory: &Path) -> (PathBuf, Vec<usize>) {
        let mut engine = Engine::open(directory).unwrap();
        engine.make_topic(0).unwrap();
        let path = directory.join("0.jnl");
        let ends = (1..=3).map(|commit| {
            let mut batch = Batch::new(&engine, IDENTITY, commit);
            batch.sync();
            for number in 0..3 {
                let key = row_key(0, 0, commit * 10 + number);
                batch.put_row(0, key, &row_of(commit, 9000));
            }
            batch.commit().1.unwrap();
            engine.sync(&RealDisk).unwrap();
            let bytes = fs::read(&path).unwrap();
            // The last bytes of a batch.
            memmem::rfind(&bytes, b"FJL\x03").unwrap() + 4
        });
        let ends: Vec<_> = ends.collect();
        drop(engine);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(ends[2] as u64 + 100).unwrap();
        (path, ends)
    }

    /// The commit that must be there, once what was torn is cut off.
    fn durable(directory: &Path) -> Result<u64, String> {
        let checked = check(directory, IDENTITY).map_err(|error| error.to_string())?;
        checked.cut().unwrap();
        Ok(checked.durable)
    }

    #[test]
    fn the_journal_of_the_engine_is_understood_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let bytes = fs::read(&path).unwrap();
        let mut scan = Scan::new(IDENTITY);
        assert_eq!(scan.whole_batches(&bytes), ends[2]);
        assert_eq!(scan.commit, Some(3));
        assert_eq!(durable(folder.path()), Ok(3));
        assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is cut");
    }

    #[test]
    fn a_torn_last_commit_is_cut_off_wherever_the_tear_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let good = fs::read(&path).unwrap();
        for at in (ends[1]..ends[2]).step_by(977) {
            // The rest is missing; or a sector in the middle is, and the end is there.
            let mut cut = good.clone();
            cut[at..ends[2]].fill(0);
            let mut hole = good.clone();
            hole[at..(at + 512).min(ends[2])].fill(0);
            for bytes in [cut, hole] {
                fs::write(&path, &bytes).unwrap();
                assert_eq!(durable(folder.path()), Ok(2), "byte {at}");
                let left = fs::read(&path).unwrap();
                assert_eq!(left[..ends[1]], good[..ends[1]]);
                assert!(left[ends[1]..].iter().all(|byte| *byte == 0));
                Engine::open(folder.path()).unwrap();
            }
        }
    }

    #[test]
    fn damage_before_the_last_commit_is_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let good = fs::read(&path).unwrap();
        for at in (ends[0]..ends[1]).step_by(977) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            let error = durable(folder.path()).unwrap_err();
            assert!(error.contains("0.jnl is damaged"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn a_commit_without_rows_tells_of_the_one_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let engine = Engine::open(folder.path()).unwrap();
        let mut batch = Batch::new(&engine, IDENTITY, 4);
        batch.sync();
        batch.commit().1.unwrap();
        drop(engine);
        assert_eq!(durable(folder.path()), Ok(4));
        let mut bytes = fs::read(&path).unwrap();
        bytes[ends[1]..ends[1] + 4096].fill(0);
        bytes[ends[2] - 9000..ends[2] - 100].fill(0);
        fs::write(&path, &bytes).unwrap();
        assert!(durable(folder.path()).is_err());
    }

    #[test]
    fn commits_that_are_missing_between_two_journals_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let good = fs::read(&path).unwrap();
        let second = folder.path().join("1.jnl");
        let split = |first: usize, from: usize| {
            fs::write(&path, [&good[..first], &[0; 100]].concat()).unwrap();
            fs::write(&second, &good[from..]).unwrap();
            durable(folder.path())
        };
        assert_eq!(split(ends[0], ends[0]), Ok(3));
        assert!(split(ends[0], ends[1]).is_err());
    }

    #[test]
    fn what_is_torn_tells_of_the_commit_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap().split_off(ends[1]);
        bytes[..200].fill(0);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(durable(folder.path()), Ok(2));
    }

    #[test]
    fn only_the_last_journal_can_be_torn() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes[ends[2] - 100] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::write(folder.path().join("1.jnl"), [0; 100]).unwrap();
        assert!(durable(folder.path()).is_err());
    }

    #[test]
    fn a_batch_number_that_does_not_grow_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        // The number of the second batch; no checksum covers it.
        bytes[ends[0] + 6] ^= 0x80;
        fs::write(&path, &bytes).unwrap();
        assert!(durable(folder.path()).is_err());
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
}

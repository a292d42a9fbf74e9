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
use std::io;
use std::path::{Path, PathBuf};

use memchr::memmem;
use xxhash_rust::xxh3::xxh3_64;

use super::catalog::{self, Key};
use super::row::{self, Row};
use super::varint::{Broken, Reader};
use crate::broker::BrokerError;

/// What the journals hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// The latest synced commit of which anything was found, even if it was torn.
    pub(super) latest: u64,
}

/// Reads all journals, and cuts off what a crash tore from the last one.
pub(super) fn check(directory: &Path, identity: u64) -> Result<Checked, BrokerError> {
    let reading = |path: &Path| {
        let doing = format!("reading {}", path.display());
        move |source| BrokerError::Io { doing, source }
    };
    let journals = list(directory).map_err(reading(directory))?;
    let mut scan = Scan {
        identity,
        commit: None,
        seqno: None,
        went_back: false,
    };
    let mut torn = 0;
    for (at, (_, path)) in journals.iter().enumerate() {
        // 64 MiB each, unless one batch was larger.
        let bytes = fs::read(path).map_err(reading(path))?;
        let whole = scan.whole_batches(&bytes);
        let rest = &bytes[whole..];
        // A new journal is filled with zeros.
        if is_zero(rest) {
            continue;
        }
        torn = latest_row(rest, identity);
        let is_last = at + 1 == journals.len();
        let is_acknowledged = scan.commit.is_some_and(|commit| torn > commit + 1);
        if !is_last || is_acknowledged || scan.went_back {
            return Err(BrokerError::Damaged {
                what: path.display().to_string(),
                detail: format!("byte {whole} and what follows cannot be read"),
            });
        }
        tracing::info!(journal = %path.display(), whole, "cutting off an unfinished commit");
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| {
                file.set_len(whole as u64)?;
                file.sync_all()
            })
            .map_err(reading(path))?;
    }
    Ok(Checked {
        latest: torn.max(scan.commit.unwrap_or(0)),
    })
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
    /// Whether a batch that is whole had a number that did not. No checksum covers them.
    went_back: bool,
}

impl Scan {
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
        self.went_back = self.seqno.is_some_and(|last| seqno <= last);
        expect(!self.went_back)?;
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
    held: Vec<(PathBuf, File)>,
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
            journals.held.push((path.clone(), File::open(path)?));
        }
        Ok(journals)
    }

    /// Takes hold of a journal that was begun since. To be called after writing and before
    /// syncing, so that no failure can come before it.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        loop {
            let path = self.directory.join(format!("{}.jnl", self.newest + 1));
            match File::open(&path) {
                Ok(file) => {
                    self.newest += 1;
                    self.held.retain(|(path, _)| path.exists());
                    self.held.push((path, file));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Fails if any journal ever failed to reach the disk since it is held.
    pub(super) fn verify(&self) -> io::Result<()> {
        for (path, file) in &self.held {
            if path.exists() {
                file.sync_data()?;
            }
        }
        Ok(())
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

    fn latest(directory: &Path) -> Result<u64, String> {
        check(directory, IDENTITY)
            .map(|checked| checked.latest)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_journal_of_the_engine_is_understood_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let bytes = fs::read(&path).unwrap();
        let mut scan = Scan {
            identity: IDENTITY,
            commit: None,
            seqno: None,
            went_back: false,
        };
        assert_eq!(scan.whole_batches(&bytes), ends[2]);
        assert_eq!(scan.commit, Some(3));
        assert_eq!(latest(folder.path()), Ok(3));
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
                let latest = latest(folder.path()).unwrap();
                assert!((2..=3).contains(&latest), "byte {at}");
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
            let error = latest(folder.path()).unwrap_err();
            assert!(error.contains("0.jnl is damaged"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn only_the_last_journal_can_be_torn() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes[ends[2] - 100] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::write(folder.path().join("1.jnl"), [0; 100]).unwrap();
        assert!(latest(folder.path()).is_err());
    }

    #[test]
    fn a_batch_number_that_does_not_grow_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        // The number of the second batch; no checksum covers it.
        bytes[ends[0] + 6] ^= 0x80;
        fs::write(&path, &bytes).unwrap();
        assert!(latest(folder.path()).is_err());
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

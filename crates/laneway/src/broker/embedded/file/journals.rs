//! What our rows tell about our commits, to the scanner of the engine's journals.

use memchr::memmem;

use super::catalog::{self, Key};
use super::row::{self, Row};

/// The rows of the store of this identity.
pub(super) struct Marks {
    pub(super) identity: u64,
}

impl laneway_disk::Marks for Marks {
    fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        if Key::decode(key) != Ok(Key::Commit) {
            return None;
        }
        let value = catalog::unsealed(key, value, self.identity)?;
        let [commit] = catalog::read_numbers(value).ok()?;
        Some(commit)
    }

    fn latest_row(&self, bytes: &[u8]) -> u64 {
        let finder = memmem::Finder::new(&row::MAGIC);
        let (mut latest, mut at) = (0, 0);
        while let Some(found) = finder.find(&bytes[at..]) {
            at += found;
            match Row::decode_front(&bytes[at..], self.identity) {
                Ok((row, length)) => {
                    latest = latest.max(row.head.commit);
                    at += length;
                }
                Err(_) => at += 1,
            }
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use laneway_disk::{RealDisk, journals};

    use super::super::batch::Batch;
    use super::super::engine::{Engine, row_key};
    use super::super::limits::FileLimits;
    use super::super::row::{Chunks, Head};
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
        let chunks = Chunks::of(&[record]);
        let chunk = chunks.iter().next().unwrap();
        row::put(&mut bytes, &head, &chunk.bytes, IDENTITY);
        bytes
    }

    /// A journal of the engine itself with three commits, and where each of them ends. Without the
    /// zeros that follow, to be quick.
    fn journal(directory: &Path) -> (PathBuf, Vec<usize>) {
        let mut engine = Engine::open(directory, &FileLimits::default()).unwrap();
        engine.make_topic(0).unwrap();
        let path = directory.join("0.jnl");
        let ends = (1..=3).map(|commit| {
            let mut batch = Batch::new(&engine, IDENTITY, commit);
            batch.sync();
            for number in 0..3 {
                let key = row_key(0, 0, commit * 10 + number);
                batch.put_row(0, key, &row_of(commit, 9000));
            }
            batch.commit(&RealDisk).1.unwrap();
            engine.as_ref().sync(&RealDisk, |_| {}).unwrap();
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
        let marks = Marks { identity: IDENTITY };
        let checked = journals::check(directory, &marks).map_err(|error| error.to_string())?;
        checked.cut().unwrap();
        Ok(checked.durable)
    }

    #[test]
    fn the_journal_of_the_engine_is_understood_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let bytes = fs::read(&path).unwrap();
        let marks = Marks { identity: IDENTITY };
        assert_eq!(journals::read(&bytes, &marks), (ends[2], Some(3)));
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
                Engine::open(folder.path(), &FileLimits::default()).unwrap();
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
    fn damage_to_the_very_first_commit_is_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ends) = journal(folder.path());
        let good = fs::read(&path).unwrap();
        for at in (14..ends[0]).step_by(977) {
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
        let engine = Engine::open(folder.path(), &FileLimits::default()).unwrap();
        let mut batch = Batch::new(&engine, IDENTITY, 4);
        batch.sync();
        batch.commit(&RealDisk).1.unwrap();
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
}

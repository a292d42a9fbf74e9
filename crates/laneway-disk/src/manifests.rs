//! The engine's manifests, seen from outside: which tables a keyspace has.
//!
//! The engine writes a manifest `vN` for every change of a keyspace's tables, syncs it, and then replaces the file `current`,
//! which has N and a checksum of the manifest. It does not look at that checksum when it opens: a flipped bit can
//! make it leave out a table, and everything in it, without a word. So it is looked at here, before the engine is opened.

use std::fs;
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::Error;
use crate::journals::reading;

/// The number of the manifest, its checksum, and how that was made.
const CURRENT: usize = 8 + 16 + 1;

/// The last byte of `current`: the checksum is `XXH3`, of 128 bits.
const XXH3: u8 = 0;

/// Checks the manifests of all keyspaces in the engine's directory.
///
/// # Errors
/// [`Error::Damaged`] if one is not what the engine wrote, or when they cannot be read.
pub(crate) fn check(directory: &Path) -> Result<(), Error> {
    let keyspaces = directory.join("keyspaces");
    let entries = match fs::read_dir(&keyspaces) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(reading(&keyspaces))?,
    };
    for entry in entries {
        let keyspace = entry.map_err(reading(&keyspaces))?.path();
        let current = keyspace.join("current");
        let bytes = match fs::read(&current) {
            // A keyspace that was being made, or removed, when the process ended: the engine knows what to do.
            Err(error) if is_none(&error) => continue,
            bytes => bytes.map_err(reading(&current))?,
        };
        let Some((number, checksum)) = parse(&bytes) else {
            return Err(damaged(&current, "it is not what was written"));
        };
        let manifest = keyspace.join(format!("v{number}"));
        match fs::read(&manifest) {
            Ok(bytes) if xxh3_128(&bytes) == checksum => {}
            Ok(_) => return Err(damaged(&manifest, "its checksum is another one")),
            Err(error) if is_none(&error) => return Err(damaged(&manifest, "it is gone")),
            Err(error) => return Err(reading(&manifest)(error)),
        }
    }
    Ok(())
}

fn is_none(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The number of the manifest and its checksum.
fn parse(bytes: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = bytes.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    let is_known = bytes.len() == CURRENT && kind == [XXH3];
    is_known.then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

fn damaged(path: &Path, detail: &str) -> Error {
    Error::Damaged {
        what: path.display().to_string(),
        detail: detail.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fjall::KeyspaceCreateOptions;

    use super::*;

    /// A directory of the engine with some tables.
    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let database = fjall::Database::builder(folder.path()).open().unwrap();
        for name in ["one", "other"] {
            let rows = database.keyspace(name, KeyspaceCreateOptions::default);
            let rows = rows.unwrap();
            for key in ["a", "b", "c"] {
                rows.insert(key, name).unwrap();
                rows.rotate_memtable_and_wait().unwrap();
            }
        }
        drop(database);
        folder
    }

    fn manifests(folder: &Path) -> Vec<std::path::PathBuf> {
        let keyspaces = fs::read_dir(folder.join("keyspaces")).unwrap();
        let files = keyspaces.flat_map(|keyspace| fs::read_dir(keyspace.unwrap().path()).unwrap());
        let files = files.map(|file| file.unwrap().path());
        let is_manifest = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name == "current" || name.starts_with('v')
        };
        files.filter(is_manifest).collect()
    }

    /// What the engine writes for a keyspace without tables: a table has the time at which it was written, and so
    /// another checksum each time.
    fn manifests_of_the_engine() -> String {
        let folder = tempfile::tempdir().unwrap();
        let database = crate::Database::open(folder.path(), 1 << 20).unwrap();
        let options = KeyspaceCreateOptions::default;
        database.keyspace("rows", options).unwrap();
        drop(database);
        let is_manifest = |name: &str| {
            let file = name.strip_prefix("keyspaces/1/");
            file.is_some_and(|file| file == "current" || file.starts_with('v'))
        };
        fixtures::pack(folder.path(), |name| !is_manifest(name)).unwrap()
    }

    #[test]
    fn the_fixture_of_manifests_is_what_the_engine_writes_and_what_is_checked() {
        let fixture = fixtures::text("lsm-tree-manifests-3.txt", manifests_of_the_engine);
        let folder = tempfile::tempdir().unwrap();
        fixtures::unpack(&fixture, folder.path()).unwrap();
        assert_eq!(manifests(folder.path()).len(), 2);
        check(folder.path()).unwrap();
        assert_eq!(
            manifests_of_the_engine(),
            fixture,
            "the engine writes other manifests than `check` was made for: compare them, and pin the version that was \
             compared"
        );
    }

    #[test]
    fn the_engine_writes_the_manifests_that_are_checked_here() {
        let folder = written();
        assert!(manifests(folder.path()).len() >= 4, "there are some");
        check(folder.path()).unwrap();
    }

    #[test]
    fn every_flipped_bit_of_a_manifest_is_told() {
        let folder = written();
        let mut noticed = 0;
        for path in manifests(folder.path()) {
            let bytes = fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(&path, flipped).unwrap();
                noticed += usize::from(check(folder.path()).is_err());
            }
            fs::write(&path, &bytes).unwrap();
            let is_used = path.ends_with("current");
            assert!(!is_used || noticed >= bytes.len(), "{}", path.display());
        }
        check(folder.path()).unwrap();
        // Manifests that are not the current one are of no use to the engine either.
        assert!(noticed > 2 * CURRENT + 100, "{noticed}");
    }

    #[test]
    fn a_directory_without_keyspaces_is_fine() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path()).unwrap();
        fs::create_dir_all(folder.path().join("keyspaces/7")).unwrap();
        fs::write(folder.path().join("keyspaces/lock"), "").unwrap();
        check(folder.path()).unwrap();
    }
}

//! The engine below a view, and opening it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use fjall::{Keyspace, KeyspaceCreateOptions, OwnedWriteBatch};
use laneway_cluster::apply::{Head, Identity};
use laneway_delay::{Counts, MessageId, TopicCounts};
use laneway_disk::varint::{self, Reader};
use laneway_disk::{Database, Directory, Format, Marks, RealDisk, read_numbers, sealed, unsealed};

use crate::error::Error;
use crate::keys;
use crate::row::Bare;

/// What is in the directory, and in which version.
const FORMAT: Format = Format {
    name: "laneway-view",
    version: 1,
    steps: &[],
};

const MIB: u64 = 1 << 20;
/// New rows, before they are written as a file.
const MEMTABLE_BYTES: u64 = 8 * MIB;
/// Blocks that were read from disk. A center has many views.
const CACHE_BYTES: u64 = 8 * MIB;

/// The engine of one view.
///
/// IMPORTANT: all is in one keyspace, whose files come and go as a whole. Batches are not synced, and with two of them a power cut could
/// leave a row without its index.
pub(crate) struct Engine {
    // IMPORTANT: before `directory`, whose lock is let go when the engine is closed.
    rows: Keyspace,
    database: Database,
    directory: Directory,
}

/// What the engine has beside rows.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) head: Option<Head>,
    pub(crate) counts: Counts,
    pub(crate) bytes: u64,
}

/// No commit is synced, so the journals tell of none that must be there.
struct Unsynced;

impl Marks for Unsynced {
    fn commit_in(&self, _: &[u8], _: &[u8]) -> Option<u64> {
        None
    }

    fn latest_row(&self, _: &[u8]) -> u64 {
        0
    }
}

impl Engine {
    /// Opens the engine of a directory, which is made if it is not there.
    pub(crate) fn open(path: &Path, identity: &Identity) -> Result<(Self, Found), Error> {
        let open = || {
            let engine = Self::open_files(path)?;
            let found = engine.find()?;
            if let Some(head) = &found.head
                && head.identity != *identity
            {
                return Err(Error::OtherLog {
                    found: Box::new(head.identity.clone()),
                    expected: Box::new(identity.clone()),
                });
            }
            Ok((engine, found))
        };
        // The engine gives up with a panic on some of what it cannot read.
        catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
            let what = path.display().to_string();
            Err(Error::damaged(what, "the engine cannot read it"))
        })
    }

    fn open_files(path: &Path) -> Result<Self, Error> {
        let mut directory = Directory::take(path, &FORMAT)?;
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(path, private).map_err(|source| laneway_disk::Error::Io {
            doing: format!("changing the permissions of {}", path.display()),
            source,
        })?;
        let opening = |error| laneway_disk::Error::opening(path, error);
        directory.make_log(|draft| open_keyspace(draft).map(drop).map_err(opening))?;
        directory.prepare(&Unsynced)?;
        let (database, rows) = open_keyspace(&directory.log()).map_err(opening)?;
        directory.expect(0, 0)?;
        Ok(Self {
            rows,
            database,
            directory,
        })
    }

    fn find(&self) -> Result<Found, Error> {
        let Some(head) = self.value(keys::HEAD, || "the head".to_owned())? else {
            let is_empty = self.rows.is_empty();
            if is_empty.map_err(|error| Error::reading("the rows", error))? {
                return Ok(Found::default());
            }
            return Err(Error::damaged("the head", "it is not there, but rows are"));
        };
        let mut from = Reader::new(&head);
        let bytes = from.number();
        let bytes = bytes.map_err(|_| Error::damaged("the head", "it is too short"))?;
        let head = Head::decode(&head.slice(from.position()..)).map_err(|source| {
            let what = "the head".to_owned();
            Error::Stored { what, source }
        })?;
        let mut counts = Counts::new();
        for entry in self.rows.prefix([keys::COUNTS]) {
            let (key, value) = entry
                .into_inner()
                .map_err(|error| Error::reading("counts", error))?;
            let value = self.unsealed(&key, &value, || "a row of counts".to_owned())?;
            let (topic, of_topic) = read_counts(&value)
                .ok_or_else(|| Error::damaged("a row of counts", "it is not one"))?;
            counts.insert(topic, of_topic);
        }
        Ok(Found {
            head: Some(head),
            counts,
            bytes,
        })
    }

    fn unsealed(
        &self,
        key: &[u8],
        value: &[u8],
        what: impl Fn() -> String,
    ) -> Result<Bytes, Error> {
        let found = unsealed(key, value, self.directory.seal.identity);
        let found = found.ok_or_else(|| Error::damaged(what(), "its checksum does not fit"))?;
        Ok(Bytes::copy_from_slice(found))
    }

    fn value(&self, key: &[u8], what: impl Fn() -> String) -> Result<Option<Bytes>, Error> {
        let value = self.rows.get(key);
        let value = value.map_err(|error| Error::reading(&what(), error))?;
        value
            .map(|value| self.unsealed(key, &value, what))
            .transpose()
    }

    /// A row without its body.
    pub(crate) fn row(&self, id: &MessageId) -> Result<Option<Bare>, Error> {
        let what = || format!("the row of {id}");
        let value = self.value(&keys::of_id(keys::ROW, id), what)?;
        value.map(|value| Bare::read(value, what)).transpose()
    }

    /// The body that a row says it has.
    pub(crate) fn body(&self, id: &MessageId, bytes: u64) -> Result<Bytes, Error> {
        let what = || format!("the body of {id}");
        match self.value(&keys::of_id(keys::BODY, id), what)? {
            Some(body) if body.len() as u64 == bytes => Ok(body),
            Some(_) => Err(Error::damaged(what(), "it is another one")),
            None => Err(Error::damaged(what(), "it is not there")),
        }
    }

    /// The keys from one to before another, in order.
    pub(crate) fn keys(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<Vec<u8>, Error>> + use<> {
        let range = self.rows.range(from.to_vec()..to.to_vec());
        range.map(|entry| {
            let key = entry
                .key()
                .map_err(|error| Error::reading("an index", error));
            key.map(|key| key.to_vec())
        })
    }

    /// The ids and rows from one key to before another, in order, without bodies.
    pub(crate) fn bare_rows(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(MessageId, Bare), Error>> {
        let range = self.rows.range(from.to_vec()..to.to_vec());
        range.map(|entry| {
            let entry = entry.into_inner();
            let (key, value) = entry.map_err(|error| Error::reading("a row", error))?;
            let id = key.get(1..).and_then(|id| std::str::from_utf8(id).ok());
            let id = id.and_then(|id| MessageId::new(id).ok());
            let id = id.ok_or_else(|| Error::damaged("a row", "its key has no id"))?;
            let what = || format!("the row of {id}");
            let bare = Bare::read(self.unsealed(&key, &value, what)?, what)?;
            Ok((id, bare))
        })
    }

    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch {
            engine: self,
            batch: self.database.batch(),
        }
    }

    /// Waits until the engine's background work has caught up.
    pub(crate) fn throttle(&self) -> Result<(), Error> {
        let caught_up = self.database.throttle(&self.rows);
        caught_up.map_err(|error| Error::reading("the engine", error))
    }
}

/// Writes that become visible together, or not at all.
pub(crate) struct Batch<'a> {
    engine: &'a Engine,
    batch: OwnedWriteBatch,
}

impl Batch<'_> {
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let value = sealed(key, value, self.engine.directory.seal.identity);
        self.batch.insert(&self.engine.rows, key, value);
    }

    pub(crate) fn put_key(&mut self, key: &[u8]) {
        self.batch.insert(&self.engine.rows, key, []);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.batch.remove(&self.engine.rows, key);
    }

    pub(crate) fn put_counts(&mut self, topic: &str, counts: &TopicCounts) {
        let mut value = Vec::with_capacity(topic.len() + 16);
        varint::put_bytes(&mut value, topic.as_bytes());
        value.extend_from_slice(&laneway_disk::numbers([
            counts.scheduled,
            counts.delivered,
            counts.dead,
            counts.withdrawn,
        ]));
        self.put(&keys::counts(topic), &value);
    }

    pub(crate) fn put_head(&mut self, head: &Head, bytes: u64) {
        let mut value = Vec::new();
        varint::put(&mut value, bytes);
        value.extend_from_slice(&head.encode());
        self.put(keys::HEAD, &value);
    }

    pub(crate) fn write(self) -> Result<(), Error> {
        let written = self.engine.database.write(&RealDisk, self.batch);
        written.map_err(|error| {
            Error::Disk(laneway_disk::Error::opening(
                self.engine.directory.path(),
                error,
            ))
        })
    }
}

fn read_counts(value: &[u8]) -> Option<(String, TopicCounts)> {
    let mut from = Reader::new(value);
    let topic = std::str::from_utf8(from.bytes().ok()?).ok()?.to_owned();
    let [scheduled, delivered, dead, withdrawn] = read_numbers(from.rest()).ok()?;
    let counts = TopicCounts {
        scheduled,
        firing: 0,
        delivered,
        dead,
        withdrawn,
    };
    Some((topic, counts))
}

fn open_keyspace(path: &Path) -> fjall::Result<(Database, Keyspace)> {
    let database = Database::open(path, CACHE_BYTES)?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
    let rows = database.keyspace("view", options)?;
    Ok((database, rows))
}

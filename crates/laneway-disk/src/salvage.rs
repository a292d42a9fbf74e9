//! The engine's tables, seen from outside: which of them cannot be read in full, and making those readable again.
//!
//! A table is a file of blocks of rows, each behind a checksum. To a reader a damaged block hides the rows in it and no others;
//! but the engine gives up for good when it merges the table. So the table is written anew without the block, under
//! the same number, while the engine is closed. The damaged file is kept beside the store.
//!
//! Without the block older versions of its rows, which other tables may still have, would be seen again. So the store says what is to stand
//! in the [`Gap`]: it knows from its other rows which keys there were.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{AbstractTree, Keyspace};
use lsm_tree::coding::Decode;
use lsm_tree::table::block::decoder::ParsedItem;
use lsm_tree::table::block::{BlockType, Header};
use lsm_tree::table::writer::Writer;
use lsm_tree::table::{Block, DataBlock};
use lsm_tree::{InternalValue, Slice, Table, ValueType};
use memchr::memmem;

use crate::Error;
use crate::directory::{make_directory, sync_directory};
use crate::error::is_damage;

/// What a block begins with.
const MAGIC: [u8; 4] = *b"LSM\x03";

/// How much is read at a time where a part of a file cannot be read: a sector is no larger.
const SECTOR: usize = 4096;

/// From which level on the index of a table is split. That of a large table has megabytes.
const SPLIT_FROM: u8 = 1;

/// A table with blocks that cannot be read.
pub struct DamagedTable {
    keyspace: Keyspace,
    table: Table,
    level: u8,
    gaps: Vec<Gap>,
}

/// Between which keys rows cannot be read.
#[derive(Clone, Debug)]
pub struct Gap {
    from: Bound<Slice>,
    to: Bound<Slice>,
}

impl Gap {
    /// Whether a row of this key, if there is one, cannot be read.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let is_behind = match &self.from {
            Bound::Included(from) => key >= &**from,
            Bound::Excluded(from) => key > &**from,
            Bound::Unbounded => true,
        };
        let is_before = match &self.to {
            Bound::Included(to) => key <= &**to,
            Bound::Excluded(to) => key < &**to,
            Bound::Unbounded => true,
        };
        is_behind && is_before
    }
}

/// What is to stand in the gaps of a table: rows, and `None` for those that are removed.
pub type GapRows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A table that was written anew, and does not yet stand where it belongs.
#[must_use]
#[derive(Debug)]
pub struct Salvaged {
    draft: PathBuf,
    path: Arc<PathBuf>,
    name: String,
}

/// The tables of a keyspace that cannot be read in full. All of them are read for that.
///
/// # Errors
/// When the system says no.
pub fn damaged_tables(keyspace: &Keyspace) -> Result<Vec<DamagedTable>, Error> {
    let mut damaged = Vec::new();
    for (level, runs) in keyspace.tree.current_version().iter_levels().enumerate() {
        for table in runs.iter().flat_map(|run| run.iter()) {
            let mut gaps = Gaps::default();
            read_blocks(table, |block| gaps.pass(block))?;
            let gaps = gaps.of(table);
            if !gaps.is_empty() {
                damaged.push(DamagedTable {
                    keyspace: keyspace.clone(),
                    table: table.clone(),
                    level: u8::try_from(level).unwrap_or(u8::MAX),
                    gaps,
                });
            }
        }
    }
    Ok(damaged)
}

impl DamagedTable {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.table.path
    }

    /// Whether a row of this key, if this table has one, cannot be read.
    #[must_use]
    pub fn hides(&self, key: &[u8]) -> bool {
        self.gaps.iter().any(|gap| gap.contains(key))
    }

    /// The keys that other tables have in the gaps, and the numbers of their latest rows.
    fn elsewhere(&self) -> BTreeMap<Vec<u8>, u64> {
        let mut keys = BTreeMap::new();
        let version = self.keyspace.tree.current_version();
        let others = version
            .iter_tables()
            .filter(|table| table.id() != self.table.id());
        for other in others {
            for gap in &self.gaps {
                let mut rows = other.range((gap.from.clone(), gap.to.clone()));
                let mut note = |row: InternalValue| {
                    let latest = keys.entry(row.key.user_key.to_vec()).or_insert(0);
                    *latest = row.key.seqno.max(*latest);
                };
                // Where that one is damaged, too, from both ends.
                while let Some(Ok(row)) = rows.next() {
                    note(row);
                }
                while let Some(Ok(row)) = rows.next_back() {
                    note(row);
                }
            }
        }
        keys
    }

    /// Writes the table anew into a folder: what can be read, and in the gaps the rows that are known. Others that stood there are
    /// removed. Rows are left as they are where a later version of them can be read. Answers which of the known rows were needed, too.
    ///
    /// # Errors
    /// When the system says no.
    pub fn rewrite(
        &self,
        known: &GapRows,
        folder: &Path,
    ) -> Result<(Salvaged, Vec<Vec<u8>>), Error> {
        let elsewhere = self.elsewhere();
        let mut rows = GapRows::new();
        let keys = elsewhere.keys().chain(known.keys());
        for key in keys.filter(|key| self.hides(key)) {
            if !rows.contains_key(key) && self.is_hidden(key)? {
                rows.insert(key.clone(), known.get(key).cloned().flatten());
            }
        }
        let number = |key: &[u8]| {
            let other = elsewhere.get(key).map_or(0, |latest| latest + 1);
            let own = self.table.get_highest_seqno();
            other.max(own) - self.table.global_seqno()
        };
        make_directory(folder)?;
        let name = format!("{}-{}", self.keyspace.name(), self.table.id());
        let draft = folder.join("draft");
        let failed = |error| Error::opening(&draft, fjall::Error::Storage(error));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(error.into()));
            }
            _ => {}
        }
        let mut writer = Writer::new(draft.clone(), self.table.id(), self.level).map_err(failed)?;
        writer = writer.use_data_block_compression(self.table.metadata.data_block_compression);
        if self.level >= SPLIT_FROM {
            writer = writer.use_partitioned_index().use_partitioned_filter();
        }
        let mut known = rows.iter().peekable();
        let mut result = Ok(());
        let is_empty = Cell::new(true);
        let mut write = |row: InternalValue| {
            is_empty.set(false);
            if result.is_ok() {
                result = writer.write(row);
            }
        };
        read_blocks(&self.table, |block| {
            for mut row in block.into_iter().flatten() {
                while let Some((key, value)) = known.next_if(|(key, _)| key[..] < *row.key.user_key)
                {
                    write(gap_row(key, value.as_deref(), number(key)));
                }
                row.key.seqno -= self.table.global_seqno().min(row.key.seqno);
                write(row);
            }
        })?;
        for (key, value) in known {
            write(gap_row(key, value.as_deref(), number(key)));
        }
        if is_empty.get() {
            // The engine expects a table of this number.
            let key = self.table.metadata.key_range.min();
            write(gap_row(key, None, 0));
        }
        result.map_err(failed)?;
        writer.finish().map_err(failed)?;
        let salvaged = Salvaged {
            draft,
            path: self.table.path.clone(),
            name,
        };
        Ok((salvaged, rows.into_keys().collect()))
    }

    /// Whether the row of this key cannot be read. One that can be has a later version in front of the gap, or was never in it.
    fn is_hidden(&self, key: &[u8]) -> Result<bool, Error> {
        let Err(error) = self.keyspace.get(key) else {
            return Ok(false);
        };
        match Error::reading(|| self.path().display().to_string(), error) {
            Error::Damaged { .. } => Ok(true),
            Error::Io { source, .. } if is_unreadable(&source) => Ok(true),
            error => Err(error),
        }
    }
}

impl Salvaged {
    /// Puts it where it belongs, and the damaged file beside it into the folder. The engine must be closed. Answers where the damaged file is.
    ///
    /// # Errors
    /// When the system says no.
    pub fn put_in_place(self, folder: &Path) -> Result<PathBuf, Error> {
        let doing = |source| Error::Io {
            doing: format!("replacing {}", self.path.display()),
            source,
        };
        let mut aside = folder.join(&self.name);
        for number in 2.. {
            match fs::hard_link(&*self.path, &aside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    aside = folder.join(format!("{}-{number}", self.name));
                }
                other => {
                    other.map_err(doing)?;
                    break;
                }
            }
        }
        sync_directory(folder)?;
        fs::rename(&self.draft, &*self.path).map_err(doing)?;
        if let Some(parent) = self.path.parent() {
            sync_directory(parent)?;
        }
        sync_directory(folder)?;
        Ok(aside)
    }
}

fn gap_row(key: &[u8], value: Option<&[u8]>, number: u64) -> InternalValue {
    match value {
        Some(value) => InternalValue::from_components(key, value, number, ValueType::Value),
        None => InternalValue::new_tombstone(key, number),
    }
}

/// Gathers gaps.
#[derive(Default)]
struct Gaps {
    /// The last key that can be read.
    last: Option<Slice>,
    /// Whether a gap has begun behind it.
    is_open: bool,
    found: Vec<(Option<Slice>, Option<Slice>)>,
}

impl Gaps {
    fn pass(&mut self, block: Option<Vec<InternalValue>>) {
        let Some(rows) = block else {
            self.is_open = true;
            return;
        };
        if let (Some(first), true) = (rows.first(), self.is_open) {
            let before = first.key.user_key.clone();
            self.found.push((self.last.clone(), Some(before)));
            self.is_open = false;
        }
        if let Some(last) = rows.last() {
            self.last = Some(last.key.user_key.clone());
        }
    }

    fn of(mut self, table: &Table) -> Vec<Gap> {
        if self.is_open {
            self.found.push((self.last, None));
        }
        let range = &table.metadata.key_range;
        let gap = |(from, to): (Option<Slice>, Option<Slice>)| Gap {
            from: from.map_or_else(|| Bound::Included(range.min().clone()), Bound::Excluded),
            to: to.map_or_else(|| Bound::Included(range.max().clone()), Bound::Excluded),
        };
        self.found.into_iter().map(gap).collect()
    }
}

/// Goes over the blocks of a table: the rows of each, or nothing for one that cannot be read.
fn read_blocks(
    table: &Table,
    mut visit: impl FnMut(Option<Vec<InternalValue>>),
) -> Result<(), Error> {
    let path: &Path = &table.path;
    let bytes = read(path).map_err(|source| Error::Io {
        doing: format!("reading {}", path.display()),
        source,
    })?;
    let regions = &table.regions;
    let others = [regions.index, regions.filter_tli, regions.filter]
        .into_iter()
        .flatten();
    let end = others.fold(*regions.tli.offset(), |end, region| {
        end.min(*region.offset())
    });
    let end = usize::try_from(end).map_or(bytes.len(), |end| end.min(bytes.len()));
    let mut rest = &bytes[..end];
    while !rest.is_empty() {
        let block = Block::from_reader(&mut &*rest, table.metadata.data_block_compression);
        let block = block
            .ok()
            .filter(|block| block.header.block_type == BlockType::Data);
        let is_whole = block.is_some();
        visit(block.map(|block| {
            let block = DataBlock::new(block);
            let rows = block.iter().map(|row| row.materialize(block.as_slice()));
            rows.map(|mut row| {
                row.key.seqno += table.global_seqno();
                row
            })
            .collect()
        }));
        // The head of a block has a checksum of its own.
        let length = match Header::decode_from(&mut &*rest) {
            Ok(header) => Header::serialized_len() + header.data_length as usize,
            Err(_) => next_head(rest),
        };
        debug_assert!(!is_whole || length <= rest.len());
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// Where the next block begins.
fn next_head(bytes: &[u8]) -> usize {
    memmem::find_iter(&bytes[1..], &MAGIC)
        .map(|at| at + 1)
        .find(|at| Header::decode_from(&mut &bytes[*at..]).is_ok())
        .unwrap_or(bytes.len())
}

/// A file, with zeroes where it cannot be read.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if is_unreadable(&error) => {}
        other => return other,
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    for (number, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        match file.read_exact_at(sector, (number * SECTOR) as u64) {
            Err(error) if is_unreadable(&error) => sector.fill(0),
            other => other?,
        }
    }
    Ok(bytes)
}

/// Whether a sector of the disk cannot be read, however often it is tried.
fn is_unreadable(error: &io::Error) -> bool {
    is_damage(error) || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

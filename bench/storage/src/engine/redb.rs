//! redb: a copy-on-write B-tree in one file.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::pack::{Unpacker, rows};
use super::{Engine, Record};

type Bytes = &'static [u8];

fn names(streams: u16) -> Vec<String> {
    (0..streams)
        .map(|stream| format!("stream-{stream}"))
        .collect()
}

fn table(name: &str) -> TableDefinition<'_, u64, Bytes> {
    TableDefinition::new(name)
}

fn open(directory: &Path, names: &[String]) -> Result<Database> {
    let database = Database::builder()
        .set_cache_size(64 << 20)
        .create(directory.join("log.redb"))?;
    let transaction = database.begin_write()?;
    for name in names {
        transaction.open_table(table(name))?;
    }
    transaction.commit()?;
    Ok(database)
}

fn retain_from(database: &Database, name: &str, offset: u64) -> Result<()> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction
        .open_table(table(name))?
        .retain_in(..offset, |_, _| false)?;
    Ok(transaction.commit()?)
}

pub(super) struct Rows {
    database: Database,
    names: Vec<String>,
    quick_repair: bool,
}

impl Rows {
    pub(super) fn open(directory: &Path, streams: u16, quick_repair: bool) -> Result<Self> {
        let names = names(streams);
        Ok(Self {
            database: open(directory, &names)?,
            names,
            quick_repair,
        })
    }
}

impl Engine for Rows {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_quick_repair(self.quick_repair);
        for (stream, name) in (0..).zip(&self.names) {
            let mut rows = batch
                .iter()
                .filter(|record| record.stream == stream)
                .peekable();
            if rows.peek().is_some() {
                let mut table = transaction.open_table(table(name))?;
                for record in rows {
                    table.insert(record.offset, record.body)?;
                }
            }
        }
        Ok(transaction.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let transaction = self.database.begin_read()?;
        let rows = transaction.open_table(table(&self.names[usize::from(stream)]))?;
        for row in ReadableTable::range(&rows, from..)?.take(max) {
            let (offset, body) = row?;
            each(offset.value(), body.value());
            count += 1;
        }
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        retain_from(&self.database, &self.names[usize::from(stream)], offset)
    }
}

pub(super) struct Packed {
    database: Database,
    names: Vec<String>,
}

impl Packed {
    pub(super) fn open(directory: &Path, streams: u16) -> Result<Self> {
        let names = names(streams);
        Ok(Self {
            database: open(directory, &names)?,
            names,
        })
    }
}

impl Engine for Packed {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        for (stream, name) in (0..).zip(&self.names) {
            for row in rows(batch, stream, usize::MAX) {
                transaction
                    .open_table(table(name))?
                    .insert(row.last, row.value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let transaction = self.database.begin_read()?;
        let rows = transaction.open_table(table(&self.names[usize::from(stream)]))?;
        for row in ReadableTable::range(&rows, from..)? {
            let (last, value) = row?;
            Unpacker::default().row(last.value(), value.value(), &mut |offset, body| {
                if offset >= from && count < max {
                    each(offset, body);
                    count += 1;
                }
            });
            if count == max {
                break;
            }
        }
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        retain_from(&self.database, &self.names[usize::from(stream)], offset)
    }
}

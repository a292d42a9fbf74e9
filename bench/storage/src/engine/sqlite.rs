//! `SQLite` in write-ahead mode, every commit synced.

use std::path::Path;

use anyhow::Result;
use rusqlite::{Connection, params};

use super::pack::{Unpacker, rows};
use super::{Engine, Record};

fn open(directory: &Path) -> Result<Connection> {
    let connection = Connection::open(directory.join("log.sqlite"))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "cache_size", -65_536)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS log (stream INTEGER, offset INTEGER, body BLOB,
         PRIMARY KEY (stream, offset)) WITHOUT ROWID",
    )?;
    Ok(connection)
}

fn delete_before(connection: &Connection, stream: u16, offset: u64) -> Result<()> {
    connection.execute(
        "DELETE FROM log WHERE stream = ?1 AND offset < ?2",
        params![stream, offset.cast_signed()],
    )?;
    Ok(())
}

const INSERT: &str = "INSERT INTO log VALUES (?1, ?2, ?3)";
const SELECT: &str = "SELECT offset, body FROM log WHERE stream = ?1 AND offset >= ?2
                      ORDER BY offset LIMIT ?3";

pub(super) struct Wal {
    connection: Connection,
}

impl Wal {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        Ok(Self {
            connection: open(directory)?,
        })
    }
}

impl Engine for Wal {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            for record in batch {
                insert.execute(params![
                    record.stream,
                    record.offset.cast_signed(),
                    record.body
                ])?;
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
        let mut select = self.connection.prepare_cached(SELECT)?;
        let mut rows = select.query(params![stream, from.cast_signed(), max.cast_signed()])?;
        while let Some(row) = rows.next()? {
            each(
                row.get::<_, i64>(0)?.cast_unsigned(),
                row.get_ref(1)?.as_blob()?,
            );
            count += 1;
        }
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        delete_before(&self.connection, stream, offset)
    }
}

pub(super) struct Packed {
    connection: Connection,
    streams: u16,
}

impl Packed {
    pub(super) fn open(directory: &Path, streams: u16) -> Result<Self> {
        Ok(Self {
            connection: open(directory)?,
            streams,
        })
    }
}

impl Engine for Packed {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let transaction = self.connection.transaction()?;
        for stream in 0..self.streams {
            for row in rows(batch, stream, usize::MAX) {
                transaction.prepare_cached(INSERT)?.execute(params![
                    stream,
                    row.last.cast_signed(),
                    row.value
                ])?;
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
        let mut select = self.connection.prepare_cached(SELECT)?;
        let mut rows = select.query(params![stream, from.cast_signed(), max.cast_signed()])?;
        while count < max
            && let Some(row) = rows.next()?
        {
            let last = row.get::<_, i64>(0)?.cast_unsigned();
            Unpacker::default().row(last, row.get_ref(1)?.as_blob()?, &mut |offset, body| {
                if offset >= from && count < max {
                    each(offset, body);
                    count += 1;
                }
            });
        }
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        delete_before(&self.connection, stream, offset)
    }
}

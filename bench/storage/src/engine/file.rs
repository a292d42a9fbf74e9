//! The floor: what the disk itself allows.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Result, bail};

use super::{Engine, Record};

pub(super) const ZEROED: usize = 256 << 20;

pub(super) struct Bare {
    file: File,
    buffer: Vec<u8>,
    zeroed: usize,
    written: usize,
}

impl Bare {
    pub(super) fn open(directory: &Path, zeroed: usize) -> Result<Self> {
        let path = directory.join("log");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        let chunk = vec![0; 1 << 20];
        for _ in 0..zeroed / chunk.len() {
            file.write_all(&chunk)?;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self {
            file,
            buffer: Vec::new(),
            zeroed,
            written: 0,
        })
    }
}

impl Engine for Bare {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        self.buffer.clear();
        for record in batch {
            self.buffer
                .extend_from_slice(&(record.body.len() as u64).to_le_bytes());
            self.buffer
                .extend_from_slice(&xxhash_rust::xxh3::xxh3_64(record.body).to_le_bytes());
            self.buffer.extend_from_slice(&record.stream.to_le_bytes());
            self.buffer.extend_from_slice(&record.offset.to_le_bytes());
            self.buffer.extend_from_slice(record.body);
        }
        self.written += self.buffer.len();
        if self.zeroed > 0 && self.written > self.zeroed {
            self.file.seek(SeekFrom::Start(0))?;
            self.written = self.buffer.len();
        }
        self.file.write_all(&self.buffer)?;
        self.file.sync_data()?;
        Ok(())
    }

    fn scan(&self, _: u16, _: u64, _: usize, _: &mut dyn FnMut(u64, &[u8])) -> Result<usize> {
        bail!("the bare file is a floor for appends only")
    }

    fn drop_before(&mut self, _: u16, _: u64) -> Result<()> {
        bail!("the bare file is a floor for appends only")
    }
}

//! A store with rows that cannot be read.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway_delay::clock::RuntimeClock;
use laneway_delay::store::{DiskStore, Sizes};
use laneway_delay::{Delays, Options, Sinks, Submission, Target, When};
use laneway_disk::RealDisk;

use super::{Hung, TOPIC_OF_CALLBACKS, submit};
use crate::delay::rig::payload;

const MESSAGES: u64 = 2000;

/// Makes a store in which a block of messages to the bus, due soon, is damaged.
pub(super) async fn store(directory: &Path) -> Result<()> {
    // Some of the rows are in a file then, which can be damaged. In several files they would be merged: the engine gives
    // up on a store when it cannot read what it merges.
    let sizes = Sizes {
        memtable: 256 << 10,
        ..Sizes::DEFAULT
    };
    let store = DiskStore::open_on(directory, Box::new(RealDisk), sizes).await?;
    let sinks = Sinks {
        bus: Some(Arc::new(Hung)),
        callbacks: None,
    };
    let clock = Arc::new(RuntimeClock::start());
    let delays = Delays::start(Arc::new(store), clock, sinks, Options::default())?;
    let when = When::At(crate::delay::rig::after(Duration::from_secs(4)));
    let all = (0..MESSAGES).map(|number| {
        let target = Target::bus("rows", format!("key-{number}"), "Due");
        Submission::new(TOPIC_OF_CALLBACKS, when, target).payload(payload(number))
    });
    let all: Vec<_> = all.collect();
    for some in all.chunks(500) {
        submit(&delays, some.to_vec()).await?;
    }
    delays.close(Duration::from_secs(30)).await?;
    flip_a_bit(directory)
}

/// At a third of the largest file of rows.
fn flip_a_bit(directory: &Path) -> Result<()> {
    let mut folders = vec![directory.join("log").join("keyspaces")];
    let mut largest = None;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if folder.ends_with("tables") {
                largest = largest.max(Some((fs::metadata(&path)?.len(), path)));
            }
        }
    }
    let (_, path) = largest.context("no rows were written to a file")?;
    let mut bytes = fs::read(&path)?;
    let third = bytes.len() / 3;
    bytes[third] ^= 0x10;
    fs::write(&path, bytes)?;
    Ok(())
}

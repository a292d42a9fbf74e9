//! Faults of the bus on disk (`file:`): its process is killed, its power is cut, its disk is full or
//! fails.
//!
//! The bus lives in a process of its own (`child`), which writes down what it does as a history, on
//! a disk that survives. Whoever breaks it reads the history of all its lives in the end.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `child` | what the process does |
//! | `stage` | where its lives take place |
//! | `mount` | file systems that can be broken |
//! | [`kill`], [`power`], [`disk`], [`recovery`] | the fault runs |
//! | [`life`] | everything in random order, against a model |

pub mod child;
pub mod disk;
pub mod kill;
pub mod life;
pub mod power;
pub mod recovery;

pub(crate) mod mount;
mod stage;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result};
use laneway::testing::history::{self, Record, Rules};

use crate::verdict::Verdict;

/// The history of all lives.
fn read(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(history::read(BufReader::new(file))?)
}

/// Judges it: nothing acknowledged is lost, and order holds.
fn judge(records: Vec<Record>) -> Verdict {
    Verdict::from(&Rules::at_least_once().check(records))
}

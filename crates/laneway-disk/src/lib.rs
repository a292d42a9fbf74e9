//! What Laneway's stores on disk share: fjall in a directory of its own.
//!
//! - One process owns the directory, and what is known about it before the engine is opened is in a
//!   file of its own ([`Directory`]).
//! - The engine takes the first thing in its journal that it cannot read for the end of it. So the
//!   journals are read before the engine does ([`journals`]): what a crash tore is cut off, damage is told.
//! - Writing and syncing are two steps, and syncs go through descriptors that the engine does not share
//!   ([`Database`]): the system tells a failed write-back once to each.
//! - Every row can be put behind a checksum that covers its key, too ([`sealed`]).
//!
//! # What this is not
//!
//! It knows no rows and no writer: what is stored, and when it is synced, is up to the stores.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `directory` | the lock, and what is known before the engine is opened |
//! | `journals` | the engine's journals, seen from outside |
//! | `database` | fjall, as it is used here |
//! | `checksum` | rows behind checksums |
//! | `varint` | numbers of variable length |
//! | `disk` | what is asked of the disk itself |
//! | `error` | what can go wrong |

mod checksum;
mod database;
mod directory;
mod disk;
mod error;
pub mod journals;
pub mod varint;

pub use checksum::{checksum, numbers, read_numbers, seal, sealed, unsealed};
pub use database::{CommitError, Database};
pub use directory::{Directory, Seal};
pub use disk::{Disk, RealDisk, Space};
pub use error::{Error, is_full, told};
pub use journals::{Journals, Marks};

//! What Laneway's stores on disk share: fjall in a directory of its own.
//!
//! - One process owns the directory, and what is known about it before the engine is opened is in a
//!   file of its own ([`Directory`]).
//! - The engine takes the first thing in its journal that it cannot read for the end of it. So the
//!   journals are read before the engine does ([`journals`]): what a crash tore is cut off, damage is told. So are its lists of
//!   tables, whose checksums it does not look at.
//! - Writing and syncing are two steps, and syncs go through descriptors that the engine does not share
//!   ([`Database`]): the system tells a failed write-back once to each.
//! - One thread writes what many ask for, and syncs once for all of them ([`Committer`]): group commit.
//! - Every row can be put behind a checksum that covers its key, too ([`sealed`]).
//!
//! # What this is not
//!
//! It knows no rows: what is stored, and which of it must be synced before it is answered, is up to the stores.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `directory` | the lock, and what is known before the engine is opened |
//! | `format` | versions of what is stored, and the steps from one to the next |
//! | `journals` | the engine's journals, seen from outside |
//! | `manifests` | the engine's lists of tables, seen from outside |
//! | `salvage` | the engine's tables, seen from outside: making damaged ones readable again |
//! | `database` | fjall, as it is used here |
//! | `commit` | group commit |
//! | `checksum` | rows behind checksums |
//! | `varint` | numbers of variable length |
//! | `disk` | what is asked of the disk itself |
//! | `error` | what can go wrong |
//! | `planted` | faults of the past, for fault runs |

mod checksum;
pub mod commit;
mod database;
mod directory;
mod disk;
mod error;
mod format;
pub mod journals;
mod manifests;
mod planted;
pub mod salvage;
pub mod varint;

pub use checksum::{checksum, numbers, read_numbers, seal, sealed, unsealed};
pub use commit::{CommitLimits, Commits, Committer, QueuePermit, StoreError};
pub use database::{CommitError, Database};
pub use directory::{Directory, Seal, remove_file, replace_file};
pub use disk::{Disk, RealDisk, Space};
pub use error::{Error, is_full, told};
pub use format::{Format, Step};
pub use journals::{Journals, Marks, is_want_of_descriptors};
#[doc(hidden)]
pub use planted::planted;

//! Scheduled messages that cannot be read.
//!
//! They are set aside: noted here, told of, and left where they are. The floor of the due index does not rise over
//! them, so that they are looked at again when the store is opened the next time.

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

use crate::Error;
use crate::store::DueKey;

/// So many are told one by one; of more only the number.
const TOLD: u64 = 100;

/// So many are known by their places. Beyond that the floor of the due index does not rise any more.
const KNOWN: usize = 65_536;

#[derive(Default)]
pub(super) struct Damage {
    aside: Mutex<Aside>,
}

#[derive(Default)]
struct Aside {
    due_keys: BTreeSet<DueKey>,
    count: u64,
    first: Option<String>,
    told: u64,
}

impl Damage {
    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock()
    }

    /// The message at a place cannot be read.
    pub(super) fn set_aside(&self, due_key: DueKey, topic: Option<&str>, error: &Error) {
        let mut aside = self.aside();
        if aside.due_keys.contains(&due_key) {
            return;
        }
        if aside.due_keys.len() < KNOWN {
            aside.due_keys.insert(due_key);
        }
        aside.count += 1;
        let (topic, at) = (topic.unwrap_or("unknown"), due_key.at);
        aside
            .first
            .get_or_insert_with(|| format!("one of topic {topic} that fires at {at}"));
        self::tell(&mut aside, || {
            tracing::error!(
                topic,
                %at,
                serial = due_key.serial,
                %error,
                "setting aside a waiting message that cannot be read"
            );
        });
    }

    /// Something else cannot be read, of which no message is known.
    pub(super) fn tell(&self, error: &Error) {
        self::tell(&mut self.aside(), || {
            tracing::error!(%error, "skipping a part of the store that cannot be read");
        });
    }

    /// How many cannot be read, and which is the first.
    pub(super) fn told(&self) -> (u64, Option<String>) {
        let aside = self.aside();
        (aside.count, aside.first.clone())
    }

    /// The first place that is set aside.
    pub(super) fn first(&self) -> Option<DueKey> {
        self.aside().due_keys.first().copied()
    }
}

fn tell(aside: &mut Aside, tell: impl FnOnce()) {
    aside.told += 1;
    if aside.told <= TOLD {
        tell();
    }
}

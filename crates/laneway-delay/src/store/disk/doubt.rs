//! Which messages a process may have sent that did not end in order.
//!
//! Claims are in memory only, so a crash forgets which messages were on their way. A row of `meta` says how far claims have
//! come: `\0claimed`, a moment before which the due keys of all claimed messages were. It is on disk before any of them is claimed
//! ([`Shared::cover`](super::Shared::cover)), [`AHEAD`] of them, so that few claims wait for it. An orderly close removes it.
//!
//! A store that finds it when it is opened was left by a crash, or by a power cut. Each message that stands before that moment,
//! and was there when the store was opened, may have been sent: it is in [`Doubt`], as one is whose attempt gave no answer. Its next
//! settlement writes that into its own row. What is left of the doubt when the store is closed is kept in the row `\0doubt`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::request::Request;
use crate::store::{DueKey, Scheduled};
use crate::{Error, Message, Timestamp};

/// How far ahead of what is claimed the moment is that is noted. After a crash so much of what was not yet due counts as
/// sent, too.
const AHEAD: Duration = Duration::from_secs(10);

/// Messages that may have been sent by an earlier process: those that stand before a moment and have a number below another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Doubt {
    /// In milliseconds; 0 is no doubt.
    pub(super) before: u64,
    /// The number of the first message that came later.
    pub(super) below: u64,
}

impl Doubt {
    /// The doubt of a store that was left with this one, and with claims that were not closed.
    pub(super) fn after(left: Self, claimed: u64, next_serial: u64) -> Self {
        if claimed == 0 {
            return left;
        }
        Self {
            before: claimed.max(left.before),
            below: next_serial.max(left.below),
        }
    }

    fn covers(self, due_key: DueKey) -> bool {
        due_key.at.as_millis() < self.before && due_key.serial < self.below
    }

    /// What is left of it when nothing waits before this place.
    pub(super) fn from(self, floor: DueKey) -> Option<Self> {
        (floor.at.as_millis() < self.before).then_some(self)
    }
}

impl Shared {
    /// A message as it waits here: in doubt, if an earlier process may have sent it.
    pub(super) fn doubted(&self, due_key: DueKey, mut message: Message) -> Message {
        if self.doubt.covers(due_key) {
            message.record = message.record.in_doubt(true);
        }
        message
    }

    /// Has it noted that these may be claimed, and waits for that if it is not yet.
    pub(super) async fn cover(
        self: &Arc<Self>,
        waiting: &[Scheduled],
        now: Timestamp,
    ) -> Result<(), Error> {
        let due = waiting.iter().map(|waiting| waiting.due_key.at);
        let Some(last) = due.filter(|at| *at <= now).max() else {
            return Ok(());
        };
        let covered = Timestamp::from_millis(self.covered.load(Ordering::Acquire));
        if last >= covered {
            return self.note_claims(last + AHEAD).await;
        }
        if last + AHEAD / 2 >= covered && !self.is_covering.swap(true, Ordering::AcqRel) {
            let shared = self.clone();
            tokio::spawn(async move {
                // If it is refused, the claim that needs it hears so.
                let _ = shared.note_claims(last + AHEAD).await;
                shared.is_covering.store(false, Ordering::Release);
            });
        }
        Ok(())
    }

    async fn note_claims(&self, before: Timestamp) -> Result<(), Error> {
        self.ask(|ack| Request::Cover { before, ack }).await?
    }
}

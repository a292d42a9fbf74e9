//! Does what the owner decided.

use laneway_cluster::apply::Table;
use laneway_cluster::owner::{Decision, Go};
use laneway_cluster::record::Instance;
use laneway_delay::MessageId;
use laneway_rpc::convert;
use laneway_rpc::proto::{self, to_worker::Frame};
use tokio::time::timeout;

use super::Task;
use super::event::Inner;
use crate::stats::count;

impl Task {
    pub(super) fn decide(&mut self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Append(bytes) => self.to_append.push(bytes),
                Decision::Go(go) => self.go(&go),
                Decision::Reply { ticket, reply } => self.reply(ticket, reply),
                Decision::IntakeDone { offset } => self.intake_done(offset, false),
                Decision::IntakeDead { offset } => self.intake_done(offset, true),
                Decision::Logged {
                    worker,
                    id,
                    attempt,
                } => self.logged(worker, &id, attempt),
                Decision::Trim { before } => self.trim_log(before),
                Decision::Verify => {
                    tracing::warn!(
                        shard = self.number,
                        "a record was written on another basis, comparing the view with the log"
                    );
                    self.announcing.verify();
                }
                Decision::AnnounceAgain => {
                    self.to_append.clear();
                    self.announcing.again();
                }
                other => {
                    tracing::error!(shard = self.number, ?other, "a decision is not known here");
                }
            }
        }
    }

    /// Gives an attempt to its worker.
    fn go(&mut self, go: &Go) {
        let (id, attempt, worker) = (go.id.clone(), go.attempt, go.worker);
        let row = self.shard.table().get(&id);
        let made = row.map(|row| {
            let bytes = row.image.body.len() as u64;
            (convert::go(self.number, go, &row), bytes)
        });
        self.attempts.given(&id, attempt, worker);
        match made {
            Some((Ok(go), bytes)) => {
                count(&self.shared.counters.begun);
                // A worker that cannot be reached is asked when it can be, or is dead soon.
                self.shared.workers.go(worker, go, bytes);
            }
            Some((Err(invalid), bytes)) => {
                tracing::error!(shard = self.number, %id, %invalid, "the content of a message cannot be read");
                // It was not sent.
                self.shared.workers.give_back(worker, bytes);
                self.fail_unreadable(worker, id, attempt, &invalid.to_string());
            }
            None => {}
        }
    }

    /// The outcome of an attempt is in the log.
    fn logged(&mut self, worker: Instance, id: &MessageId, attempt: u32) {
        count(&self.shared.counters.outcomes);
        let logged = proto::Logged {
            shard: self.number,
            id: id.as_str().to_owned(),
            attempt,
        };
        self.shared.workers.send(worker, Frame::Logged(logged));
        self.attempts.settled(id, attempt);
        self.reconsider(id);
    }

    fn trim_log(&mut self, before: u64) {
        let (shared, number, inner) = (self.shared.clone(), self.number, self.inner.clone());
        tracing::info!(shard = number, before, "trimming the log of a shard");
        self.upkeep.trimmed(self.shard.head().next, before);
        self.background.spawn(async move {
            let trimming = shared.log.trim(number, before);
            match timeout(shared.settings.ask_within, trimming).await {
                Ok(Ok(())) => {
                    let _ = inner.send(Inner::Trimmed);
                }
                Ok(Err(error)) => {
                    tracing::warn!(shard = number, %error, "trimming the log of a shard failed; the next trim does it");
                }
                Err(_) => {
                    tracing::warn!(shard = number, "trimming the log of a shard took too long");
                }
            }
        });
    }
}

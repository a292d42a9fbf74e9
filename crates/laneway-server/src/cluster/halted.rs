//! A center on which a shard can go no further gives up, if another center can go on.
//!
//! A group gives partitions to its members, and a member cannot hand back a single one: so the center leaves the group with all its
//! shards, and follows them from then on. It does that only if another center is as far and well, and only one center of a cluster
//! at a time: a record that no center can read must not make all of them leave.

use std::sync::Arc;
use std::time::Duration;

use laneway_center::Center;
use laneway_registry::{InstanceId, Registry};
use laneway_rpc::proto::{StatusRequest, reply, request};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::owners::Owners;

/// How often it is looked whether a shard goes no further.
const LOOK: Duration = Duration::from_secs(2);

/// How long others may take to answer.
const WITHIN: Duration = Duration::from_secs(2);

/// Held by the center that gives up, as long as it is there.
const LOCK: &str = "gives-up";

/// The center of this process, and those that could take its place.
pub(super) struct Halting {
    pub(super) id: InstanceId,
    pub(super) center: Arc<Center>,
    pub(super) owners: Arc<Owners>,
    pub(super) registry: Registry,
    /// How long the shards may take to be given up.
    pub(super) drain: Duration,
}

impl Halting {
    /// Looks now and then. It does not end.
    pub(super) async fn watch(self) {
        loop {
            sleep(LOOK).await;
            for (shard, applied) in self.center.halted() {
                if !self.center.has_left() && self.another_goes_on(shard, applied).await {
                    self.give_up(shard).await;
                }
            }
        }
    }

    /// Whether another center has this shard as far, and well.
    async fn another_goes_on(&self, shard: u32, applied: u64) -> bool {
        let what = request::What::Status(StatusRequest {});
        let answers = self.owners.ask_all(shard, what, WITHIN).await;
        answers.into_iter().any(|(id, answer)| {
            let Ok(Some(reply::What::Status(status))) = answer.map(|reply| reply.what) else {
                return false;
            };
            id != self.id
                && !status.has_left
                && status.stopped.is_empty()
                && status.applied >= applied
        })
    }

    async fn give_up(&self, shard: u32) {
        let locking = self.registry.try_lock(LOCK, self.id, WITHIN);
        let lock = match locking.await {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                warn!(
                    shard,
                    "a shard goes no further here; another center gives up already, so this one stays"
                );
                return;
            }
            Err(error) => {
                warn!(shard, %error, "a shard goes no further here, and the registry does not say whether this center may give up");
                return;
            }
        };
        error!(
            shard,
            "a shard goes no further here and another center can go on: this one gives up all shards; start it again when it is mended"
        );
        if self.center.give_up(self.drain).await {
            info!("all shards are given up");
        }
        // For as long as this process lives: of two that give up one would be too many.
        std::future::pending::<()>().await;
        drop(lock);
    }
}

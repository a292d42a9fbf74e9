//! A center on which a shard can go no further gives up, if another center can go on.
//!
//! A group gives partitions to its members, and a member cannot hand back a single one: so the center leaves the group with all its
//! shards, and follows them from then on. It does that only if another center is as far and well, and only one center of a cluster
//! at a time: a record that no center can read must not make all of them leave. A view that fails and is opened again has gone
//! on: only a shard that is found so several times in a row counts.

use std::collections::BTreeMap;
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

/// So many looks in a row must have found a shard that goes no further.
const LOOKS: u32 = 3;

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

/// In how many looks in a row each shard went no further.
#[derive(Default)]
struct Halts(BTreeMap<u32, u32>);

impl Halts {
    /// Notes what a look has found; those of it that go no further for long enough.
    fn lasting(&mut self, found: Vec<(u32, u64)>) -> Vec<(u32, u64)> {
        let count = |shard| {
            self.0
                .get(&shard)
                .map_or(1, |looks| looks.saturating_add(1))
        };
        self.0 = found
            .iter()
            .map(|(shard, _)| (*shard, count(*shard)))
            .collect();
        let lasts =
            |(shard, _): &(u32, u64)| self.0.get(shard).is_some_and(|looks| *looks >= LOOKS);
        found.into_iter().filter(lasts).collect()
    }
}

impl Halting {
    /// Looks now and then. It does not end.
    pub(super) async fn watch(self) {
        let mut halts = Halts::default();
        loop {
            sleep(LOOK).await;
            for (shard, applied) in halts.lasting(self.center.halted()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_goes_on_between_two_looks_does_not_count() {
        let mut halts = Halts::default();
        for _ in 0..10 {
            for _ in 1..LOOKS {
                assert_eq!(halts.lasting(vec![(3, 7)]), []);
            }
            assert_eq!(halts.lasting(Vec::new()), []);
        }
    }

    #[test]
    fn a_shard_that_goes_no_further_counts_whatever_others_do() {
        let mut halts = Halts::default();
        for look in 1..LOOKS {
            assert_eq!(halts.lasting(vec![(1, 5), (look + 10, 0)]), []);
        }
        assert_eq!(halts.lasting(vec![(1, 5), (2, 0)]), [(1, 5)]);
        assert_eq!(halts.lasting(vec![(1, 5)]), [(1, 5)]);
    }
}

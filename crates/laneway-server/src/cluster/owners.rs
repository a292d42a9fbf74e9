//! Finds the owner of a shard, and asks it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use laneway_registry::{Directory, InstanceId};
use laneway_rpc::proto::{self, reply, request};
use laneway_rpc::{CallError, CenterCalls};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long one center may take before the others are asked, too.
const TRY_FOR: Duration = Duration::from_secs(2);

/// Between two rounds over all centers.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes what calls a center at an address. It connects when it is used.
pub(crate) type Dial = Box<dyn Fn(&str) -> Arc<dyn CenterCalls> + Send + Sync>;

/// The centers of the cluster, and which of them has which shard, as last heard.
pub(crate) struct Owners {
    centers: watch::Receiver<Directory>,
    dial: Dial,
    /// The center in this process, if it has that role.
    own: Option<(InstanceId, Arc<dyn CenterCalls>)>,
    clients: Mutex<HashMap<InstanceId, Arc<dyn CenterCalls>>>,
    known: Mutex<BTreeMap<u32, InstanceId>>,
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owners").finish_non_exhaustive()
    }
}

/// What the owner of a shard replied.
#[derive(Debug)]
pub(crate) struct Replied {
    pub(crate) what: reply::What,
    /// An earlier try had no answer, and may have taken effect.
    pub(crate) is_repeated: bool,
}

/// No owner of a shard replied in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no center has shard {shard} now: {reason}")]
pub(crate) struct NoOwner {
    pub(crate) shard: u32,
    pub(crate) reason: String,
    /// A try had no answer, and may have taken effect.
    pub(crate) may_have_happened: bool,
}

impl Owners {
    pub(crate) fn new(
        centers: watch::Receiver<Directory>,
        dial: Dial,
        own: Option<(InstanceId, Arc<dyn CenterCalls>)>,
    ) -> Self {
        Self {
            centers,
            dial,
            own,
            clients: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Asks the owner of a shard, and other centers until one of them is the owner, until the deadline.
    pub(crate) async fn ask(
        &self,
        shard: u32,
        what: request::What,
        deadline: Instant,
    ) -> Result<Replied, NoOwner> {
        let mut is_repeated = false;
        let mut reason = "there is none in the registry".to_owned();
        loop {
            for (id, center) in self.in_order(shard) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let request = proto::Request {
                    shard,
                    what: Some(what.clone()),
                };
                let answer = timeout(left.min(TRY_FOR), center.call(request)).await;
                match answer.unwrap_or(Err(CallError::Deadline)) {
                    Ok(proto::Reply {
                        what: None | Some(reply::What::NotOwner(_)),
                    }) => "all of them say that it is not theirs".clone_into(&mut reason),
                    Ok(proto::Reply { what: Some(what) }) => {
                        self.known.lock().insert(shard, id);
                        return Ok(Replied { what, is_repeated });
                    }
                    Err(error) => {
                        is_repeated |= error.is_retryable();
                        reason = error.to_string();
                    }
                }
                self.known.lock().remove(&shard);
            }
            if Instant::now() + PAUSE >= deadline {
                return Err(NoOwner {
                    shard,
                    reason,
                    may_have_happened: is_repeated,
                });
            }
            sleep(PAUSE).await;
        }
    }

    /// All centers, the one that had the shard last before the others.
    fn in_order(&self, shard: u32) -> Vec<(InstanceId, Arc<dyn CenterCalls>)> {
        let directory = self.centers.borrow().clone();
        let known = self.known.lock().get(&shard).copied();
        let mut clients = self.clients.lock();
        clients.retain(|id, _| directory.get(*id).is_some());
        let mut centers: Vec<_> = directory
            .instances()
            .map(|instance| {
                let id = instance.id;
                let own = self.own.as_ref().filter(|(own, _)| *own == id);
                let center = own.map_or_else(
                    || {
                        let dial = || (self.dial)(&instance.address);
                        clients.entry(id).or_insert_with(dial).clone()
                    },
                    |(_, center)| center.clone(),
                );
                (id, center)
            })
            .collect();
        // Asked alike where nothing is known, so that no center is asked for all shards.
        let start = shard as usize % centers.len().max(1);
        centers.rotate_left(start);
        centers.sort_by_key(|(id, _)| Some(*id) != known);
        centers
    }

    /// What every center says about a shard, with the name of the center.
    pub(crate) async fn ask_all(
        &self,
        shard: u32,
        what: request::What,
        within: Duration,
    ) -> Vec<(InstanceId, Result<proto::Reply, CallError>)> {
        let asked = self.in_order(shard).into_iter().map(|(id, center)| {
            let request = proto::Request {
                shard,
                what: Some(what.clone()),
            };
            async move {
                let answer = timeout(within, center.call(request)).await;
                (id, answer.unwrap_or(Err(CallError::Deadline)))
            }
        });
        futures_util::future::join_all(asked).await
    }

    /// The centers, as the registry lists them.
    pub(crate) fn centers(&self) -> Directory {
        self.centers.borrow().clone()
    }
}

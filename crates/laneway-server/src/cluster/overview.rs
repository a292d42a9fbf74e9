//! The role admin: what there is in the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use laneway_registry::{Directory, InstanceId, Role};
use laneway_rpc::proto::{ShardStatus, StatusRequest, reply, request};
use serde::Serialize;
use tokio::sync::watch;

use super::catalog::SharedCatalog;
use super::owners::Owners;

/// How long a center may take to tell how it is doing.
const WITHIN: Duration = Duration::from_secs(2);

/// Shards that are asked for at the same time.
const AT_ONCE: usize = 8;

/// Looks at all instances.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(super) cluster: String,
    pub(super) shards: u32,
    pub(super) directories: Vec<watch::Receiver<Directory>>,
    pub(super) owners: Arc<Owners>,
    pub(super) catalog: Arc<SharedCatalog>,
}

/// What `GET /v1/cluster` answers.
#[derive(Debug, Serialize)]
pub(crate) struct Cluster {
    #[serde(rename = "cluster")]
    name: String,
    /// Whether the registry answers. If not, the instances are those that were there when it last did.
    is_current: bool,
    instances: Vec<InstanceView>,
    shards: Vec<ShardView>,
    clocks: Vec<ClockView>,
}

#[derive(Debug, Serialize)]
struct InstanceView {
    role: Role,
    name: String,
    id: InstanceId,
    address: String,
    version: String,
    weight: u32,
    /// Whether an operator drains it.
    is_drained: bool,
}

#[derive(Debug, Serialize)]
struct ShardView {
    shard: u32,
    /// The name of the center that owns it.
    owner: Option<String>,
    owner_id: Option<InstanceId>,
    epoch: u64,
    /// The offset of the log that the owner has applied.
    applied: u64,
    rows: u64,
    /// The centers that follow it.
    copies: Vec<CopyView>,
    /// Centers on which it goes no further, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    stopped: BTreeMap<String, String>,
}

/// The view of a shard on a center that does not own it.
#[derive(Debug, Serialize)]
struct CopyView {
    center: String,
    applied: u64,
    /// How many offsets of the log the owner is ahead.
    behind: u64,
}

/// A worker, as a center sees it.
#[derive(Debug, Serialize)]
struct ClockView {
    center: String,
    worker: String,
    is_connected: bool,
    /// Whether it takes nothing new.
    is_draining: bool,
    /// Attempts that wait for their moment.
    held: u64,
    /// Attempts that run, and outcomes that are not logged.
    unsettled: u64,
    /// How much of its processors and of its memory is in use, from 0 to 1.
    cpu: f32,
    memory: f32,
    /// How far the clock of the worker is ahead of the center's.
    offset_ms: i64,
}

impl Overview {
    /// Asks all centers.
    pub(crate) async fn look(&self) -> Cluster {
        let directories: Vec<Directory> = self
            .directories
            .iter()
            .map(|directory| directory.borrow().clone())
            .collect();
        let centers = self.owners.centers();
        let name = |id: InstanceId| {
            let center = centers.get(id);
            center.map_or_else(|| id.to_string(), |center| center.name.clone())
        };
        let asked = (0..self.shards).map(|shard| async move {
            let what = request::What::Status(StatusRequest {});
            (shard, self.owners.ask_all(shard, what, WITHIN).await)
        });
        let told: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut clocks = Vec::new();
        let shards = told
            .into_iter()
            .map(|(shard, answers)| {
                let mut view = ShardView::unowned(shard);
                for (id, answer) in answers {
                    let Ok(Some(reply::What::Status(status))) = answer.map(|reply| reply.what)
                    else {
                        continue;
                    };
                    if shard == 0 {
                        clocks.extend(seen(&name(id), &status));
                    }
                    view.add(id, &name(id), status);
                }
                view.compare();
                view
            })
            .collect();
        Cluster {
            name: self.cluster.clone(),
            is_current: directories.iter().all(Directory::is_current),
            instances: directories
                .iter()
                .flat_map(|directory| self.instances(directory))
                .collect(),
            shards,
            clocks,
        }
    }

    fn instances(&self, directory: &Directory) -> Vec<InstanceView> {
        let all = directory.instances().map(|instance| InstanceView {
            role: instance.role,
            name: instance.name.clone(),
            id: instance.id,
            address: instance.address.clone(),
            version: instance.version.clone(),
            weight: instance.weight,
            is_drained: self.catalog.is_drained(instance.id),
        });
        all.collect()
    }
}

impl ShardView {
    fn unowned(shard: u32) -> Self {
        Self {
            shard,
            owner: None,
            owner_id: None,
            epoch: 0,
            applied: 0,
            rows: 0,
            copies: Vec::new(),
            stopped: BTreeMap::new(),
        }
    }

    /// What a center says about it. Of two that say that they own it, the one of the higher epoch does.
    fn add(&mut self, id: InstanceId, center: &str, status: ShardStatus) {
        if !status.stopped.is_empty() {
            self.stopped.insert(center.to_owned(), status.stopped);
        }
        self.copies.push(CopyView {
            center: center.to_owned(),
            applied: status.applied,
            behind: 0,
        });
        if status.is_owner && (self.owner.is_none() || status.epoch > self.epoch) {
            self.owner = Some(center.to_owned());
            self.owner_id = Some(id);
            self.epoch = status.epoch;
            self.applied = status.applied;
            self.rows = status.rows;
        }
    }

    /// All centers have told.
    fn compare(&mut self) {
        let (owner, applied) = (self.owner.clone(), self.applied);
        self.copies
            .retain(|copy| Some(&copy.center) != owner.as_ref());
        for copy in &mut self.copies {
            copy.behind = applied.saturating_sub(copy.applied);
        }
    }
}

fn seen(center: &str, status: &ShardStatus) -> Vec<ClockView> {
    let all = status.workers.iter().map(|worker| ClockView {
        center: center.to_owned(),
        worker: worker.name.clone(),
        is_connected: worker.is_connected,
        is_draining: worker.is_draining,
        held: worker.held,
        unsettled: worker.unsettled,
        cpu: worker.cpu,
        memory: worker.memory,
        offset_ms: worker.offset_ms,
    });
    all.collect()
}

//! What operators have set for this very process: it is drained, or removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use laneway_center::Center;
use laneway_registry::{InstanceId, RegistrationState};
use laneway_worker::Worker;
use tokio::sync::watch;
use tracing::{info, warn};

use super::catalog::SharedCatalog;

/// The roles of this process, as far as they obey.
pub(super) struct Obeying {
    pub(super) id: InstanceId,
    pub(super) worker: Option<Arc<Worker>>,
    pub(super) center: Option<Arc<Center>>,
    /// How long the shards may take to be given up.
    pub(super) drain: Duration,
    /// Set when this process is a member no more.
    pub(super) is_removed: watch::Sender<bool>,
}

impl Obeying {
    /// Does what the catalog says. It does not end.
    pub(super) async fn obey(self, catalog: Arc<SharedCatalog>) {
        let id = self.id.to_string();
        let mut is_drained = false;
        let mut removed: BTreeSet<String> = BTreeSet::new();
        catalog
            .each(|catalog| {
                if catalog.removed.contains(&id) {
                    self.is_removed.send_replace(true);
                }
                if catalog.drained.contains(&id) && !is_drained {
                    is_drained = true;
                    self.drain();
                }
                let new = catalog.removed.iter().filter(|it| !removed.contains(*it));
                for worker in new.filter_map(|it| it.parse().ok()) {
                    if let Some(center) = &self.center {
                        center.remove_worker(worker);
                    }
                }
                removed.clone_from(&catalog.removed);
            })
            .await;
    }

    fn drain(&self) {
        info!("an operator drains this instance: it takes nothing new");
        if let Some(worker) = &self.worker {
            worker.start_draining();
        }
        if let Some(center) = self.center.clone() {
            let drain = self.drain;
            tokio::spawn(async move {
                if center.give_up(drain).await {
                    info!("all shards are given up");
                } else {
                    warn!("not all shards could be given up in time");
                }
            });
        }
    }
}

/// Notes when the registry says that an operator has taken this process off it.
pub(super) async fn until_taken_off(
    mut states: watch::Receiver<RegistrationState>,
    is_removed: watch::Sender<bool>,
) {
    let is_off = |state: &RegistrationState| *state == RegistrationState::Removed;
    if states.wait_for(is_off).await.is_ok() {
        is_removed.send_replace(true);
    }
}

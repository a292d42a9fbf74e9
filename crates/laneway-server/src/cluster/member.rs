//! Starts the roles of this process, and stops them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use laneway::Bus;
use laneway_center::Center;
use laneway_delay::store::{MoveNote, MoveStage};
use laneway_registry::{Registration, Role};
use laneway_rpc::{CenterCalls, Server};
use laneway_worker::Worker;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::catalog::SharedCatalog;
use super::common::{Common, wait_until_listed};
use super::connect::dial;
use super::halted::Halting;
use super::instances::Instances;
use super::metrics::RoleMetrics;
use super::obey::{Obeying, until_taken_off};
use super::overview::Overview;
use super::owners::Owners;
use super::placements::Placements;
use super::receive::{Receive, keep_counting};
use super::topics;
use crate::config::Config;
use crate::delay::Outlet;

/// What the role admin shows and sets.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) overview: Overview,
    pub(crate) placements: Placements,
    pub(crate) instances: Instances,
}

/// A process of a cluster.
pub(crate) struct Member {
    pub(crate) outlet: Outlet,
    pub(crate) receive: Arc<Receive>,
    pub(crate) admin: Option<Arc<Admin>>,
    /// The bus with the log and the intake, where that is another one than messages are published to.
    pub(crate) log_bus: Option<Bus>,
    center: Option<Arc<Center>>,
    worker: Option<Arc<Worker>>,
    server: Mutex<Option<Server>>,
    registrations: Mutex<Vec<(Role, Registration)>>,
    tasks: Mutex<JoinSet<()>>,
    is_removed: watch::Receiver<bool>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("center", &self.center)
            .field("worker", &self.worker.is_some())
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Joins the cluster with the roles that are set.
    pub(crate) async fn start(config: &Config, http: SocketAddr) -> anyhow::Result<Self> {
        refuse_unmoved(&config.serve.data_dir)?;
        let outlet = Outlet::open(config).await?;
        let roles = config.serve.roles;
        let (bus, log_bus) = topics::log_bus(config, &outlet).await?;
        let log = topics::open(&bus, config.serve.shards).await?;
        // Before anything is begun: what is set counts from the first attempt on.
        let (catalog, follower) = SharedCatalog::open(&bus).await?;
        let common = Common::new(config, bus, log, catalog.clone()).await?;
        let worker = if roles.worker {
            Some(Arc::new(common.worker(&outlet)?))
        } else {
            None
        };
        let listener = common.listen(roles).await?;
        let address = common.address(listener.as_ref())?;
        let center = if roles.center {
            let center = common.center(&address, worker.as_ref()).await?;
            Some(Arc::new(center))
        } else {
            None
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(catalog.clone().follow(follower));
        let server = match listener {
            Some(listener) => {
                Some(common.serve(listener, center.as_ref(), worker.as_ref(), &mut tasks)?)
            }
            None => None,
        };
        let own = center.clone().map(|center| {
            let center: Arc<dyn CenterCalls> = center;
            (common.id, center)
        });
        let centers = common.registry.watch(Role::Center);
        let owners = Owners::new(centers, dial(common.settings.clone()), own);
        let owners = Arc::new(owners);
        if let Some(center) = center.clone() {
            let halting = Halting {
                id: common.id,
                center,
                owners: owners.clone(),
                registry: common.registry.clone(),
                drain: common.drain(),
            };
            tasks.spawn(halting.watch());
        }
        let registrations = common.register(roles, &address, http);
        let is_removed = watch::Sender::new(false);
        let membership = is_removed.subscribe();
        for (_, registration) in &registrations {
            tasks.spawn(until_taken_off(registration.states(), is_removed.clone()));
        }
        let obeying = Obeying {
            id: common.id,
            worker: worker.clone(),
            center: center.clone(),
            drain: common.drain(),
            is_removed,
        };
        tasks.spawn(obeying.obey(catalog));
        let listed = registrations
            .iter()
            .map(|(_, registration)| registration.states());
        wait_until_listed(listed.collect()).await;
        let receive = common.receive(
            &outlet,
            owners.clone(),
            &registrations,
            (worker.clone(), center.clone()),
        );
        if roles.receive || roles.admin {
            tasks.spawn(keep_counting(receive.clone()));
        }
        let admin = roles.admin.then(|| common.admin(owners));
        info!(
            cluster = config.serve.cluster,
            roles = roles.show(),
            name = common.name,
            id = %common.id,
            address,
            "joined the cluster"
        );
        Ok(Self {
            outlet,
            receive,
            admin: admin.map(Arc::new),
            log_bus,
            center,
            worker,
            server: Mutex::new(server),
            registrations: Mutex::new(registrations),
            tasks: Mutex::new(tasks),
            is_removed: membership,
        })
    }

    /// Waits until an operator has removed this process from the cluster.
    pub(crate) async fn removed(&self) {
        let mut is_removed = self.is_removed.clone();
        if is_removed.wait_for(|it| *it).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What the roles count.
    pub(crate) fn metrics(&self) -> RoleMetrics {
        RoleMetrics {
            center: self.center.clone(),
            worker: self.worker.clone(),
        }
    }

    /// Takes no more, finishes what runs, hands the shards over and leaves, all of it within `limit`.
    pub(crate) async fn stop(&self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.receive.close();
        // Before the center stops: outcomes have to be logged, perhaps by the one in this process.
        if let Some(worker) = &self.worker {
            let share = left().mul_f32(0.5);
            let drained = worker.drain(share).await;
            if !drained.is_clean() {
                warn!(
                    ?drained,
                    "attempts did not end in time: their outcomes are asked for or they come again"
                );
            }
        }
        let registrations = std::mem::take(&mut *self.registrations.lock());
        for (_, registration) in registrations {
            let _ = timeout(left().mul_f32(0.3), registration.leave()).await;
        }
        if let Some(center) = &self.center {
            center.stop(left().mul_f32(0.6)).await;
        }
        let server = self.server.lock().take();
        if let Some(server) = server {
            server.close(left().mul_f32(0.3)).await;
        }
        self.tasks.lock().abort_all();
        let buses = [Some(&self.outlet.bus), self.log_bus.as_ref()];
        for bus in buses.into_iter().flatten() {
            let closed = bus.close(left()).await;
            closed.context("cannot close the bus")?;
        }
        Ok(())
    }
}

/// Messages that one machine has kept would wait in its directory for ever, without a word.
fn refuse_unmoved(data: &Path) -> anyhow::Result<()> {
    let messages = data.join("messages");
    if !messages.join("store").exists() {
        return Ok(());
    }
    let note = MoveNote::read(&messages)?;
    if note.is_some_and(|note| note.stage == MoveStage::Moved) {
        return Ok(());
    }
    bail!(
        "the data directory {} (serve.data_dir) has messages of a server without --log, which a cluster does not deliver: move \
         them with `laneway move --from {0} --to …`, or choose another one with --data-dir",
        data.display()
    );
}

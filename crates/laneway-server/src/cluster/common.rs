//! What the roles of a process share, and how each of them is made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use laneway::Bus;
use laneway::log::Log;
use laneway_center::Center;
use laneway_cluster::balance::Placement;
use laneway_cluster::record;
use laneway_delay::Schedule;
use laneway_delay::clock::{Clock, SystemClock};
use laneway_registry::{Instance, InstanceId, Registration, RegistrationState, Registry, Role};
use laneway_rpc::proto::Hello;
use laneway_rpc::{CenterCalls, Server, Services, Settings, Tls};
use laneway_worker::Worker;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::catalog::SharedCatalog;
use super::connect::Connector;
use super::instances::Instances;
use super::member::Admin;
use super::overview::Overview;
use super::owners::Owners;
use super::placements::Placements;
use super::receive::{Parts, Receive};
use super::{backup, registry};
use crate::build_info::BUILD;
use crate::config::{Config, Roles};
use crate::delay::{Outlet, engine_options};

/// Streams of centers that wait for the worker.
const ACCEPTED: usize = 64;

/// How long the start waits for the registry.
const LISTED_WITHIN: Duration = Duration::from_secs(3);

/// Registered where no other process reaches this one.
const NOWHERE: &str = "local";

/// What all roles of this process share.
pub(super) struct Common<'a> {
    pub(super) config: &'a Config,
    pub(super) id: InstanceId,
    pub(super) instance: record::Instance,
    pub(super) name: String,
    pub(super) settings: Settings,
    pub(super) registry: Registry,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) bus: Bus,
    pub(super) log: Log,
    pub(super) catalog: Arc<SharedCatalog>,
}

impl<'a> Common<'a> {
    pub(super) async fn new(
        config: &'a Config,
        bus: Bus,
        log: Log,
        catalog: Arc<SharedCatalog>,
    ) -> anyhow::Result<Self> {
        let serve = &config.serve;
        let id = InstanceId::draw();
        let instance = instance(id);
        let name = serve.name.clone().unwrap_or_else(machine);
        let hello = Hello {
            cluster: serve.cluster.clone(),
            instance: instance.0.to_vec().into(),
            name: name.clone(),
            version: BUILD.version.to_owned(),
        };
        let tls = match (&serve.rpc_ca, &serve.rpc_cert, &serve.rpc_key) {
            (Some(ca), Some(certificate), Some(key)) => Some(
                Tls::load(ca, certificate, key)
                    .context("cannot use serve.rpc_ca, serve.rpc_cert and serve.rpc_key")?,
            ),
            _ => None,
        };
        let settings = Settings::new(hello).payload_limit(log.largest()).tls(tls);
        Ok(Self {
            config,
            id,
            instance,
            name,
            settings,
            registry: registry::open(config).await?,
            clock: Arc::new(SystemClock::default()),
            bus,
            log,
            catalog,
        })
    }

    pub(super) fn worker(&self, outlet: &Outlet) -> anyhow::Result<Worker> {
        let cluster = self.config.serve.cluster.clone();
        let sinks = outlet.sinks.clone();
        let options =
            laneway_worker::Options::new(cluster, self.instance, self.name.clone(), sinks);
        let options = laneway_worker::Options {
            limits: engine_options(self.config),
            clock: self.clock.clone(),
            ..options
        };
        Worker::start(options).context("cannot start the role worker")
    }

    pub(super) async fn center(
        &self,
        address: &str,
        worker: Option<&Arc<Worker>>,
    ) -> anyhow::Result<Center> {
        let connector = Connector {
            settings: self.settings.clone(),
            own: worker.map(|worker| (address.to_owned(), worker.clone())),
        };
        let mut settings = laneway_center::Settings::default();
        settings.drain = self.drain();
        // Below that a submit that waited in the intake could not be told from one that was delivered and forgotten.
        settings.owner.keep = settings.owner.keep.max(self.config.delay.keep_ended);
        let options = laneway_center::Options {
            cluster: self.config.serve.cluster.clone(),
            instance: self.instance,
            name: self.name.clone(),
            log: self.log.clone(),
            bus: self.bus.clone(),
            directory: self.config.serve.data_dir.join("views"),
            registry: self.registry.clone(),
            connector: Arc::new(connector),
            clock: self.clock.clone(),
            topics: Arc::new(Topics {
                waits: engine_options(self.config),
                catalog: self.catalog.clone(),
            }),
            backup: backup::open(self.config)?,
            settings,
        };
        let started = Center::start(options).await;
        started.context("cannot start the role center")
    }

    /// How long a shard that is given up may wait for what runs.
    pub(super) fn drain(&self) -> Duration {
        self.config.serve.shutdown_timeout.mul_f32(0.3)
    }

    /// Listens for other processes, if there are any and a role that they call.
    pub(super) async fn listen(&self, roles: Roles) -> anyhow::Result<Option<TcpListener>> {
        if registry::is_local(self.config) || !(roles.center || roles.worker) {
            return Ok(None);
        }
        let listen = self.config.serve.rpc_listen;
        let bound = TcpListener::bind(listen).await;
        let bound = bound.with_context(|| {
            format!("cannot listen on {listen} (serve.rpc_listen): choose another address with --rpc-listen")
        })?;
        Ok(Some(bound))
    }

    /// What others are told.
    pub(super) fn address(&self, listener: Option<&TcpListener>) -> anyhow::Result<String> {
        match (&self.config.serve.rpc_address, listener) {
            (_, None) => Ok(NOWHERE.to_owned()),
            (Some(address), Some(_)) => Ok(address.clone()),
            (None, Some(listener)) => Ok(listener.local_addr()?.to_string()),
        }
    }

    pub(super) fn serve(
        &self,
        listener: TcpListener,
        center: Option<&Arc<Center>>,
        worker: Option<&Arc<Worker>>,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<Server> {
        let workers = worker.map(|worker| {
            let (accepted, mut connections) = mpsc::channel(ACCEPTED);
            let worker = worker.clone();
            tasks.spawn(async move {
                while let Some(connection) = connections.recv().await {
                    worker.serve(connection);
                }
            });
            accepted
        });
        let center = center
            .cloned()
            .map(|center| -> Arc<dyn CenterCalls> { center });
        let services = Services { workers, center };
        let served = laneway_rpc::serve(listener, &self.settings, services);
        served.context("cannot serve the other processes of the cluster")
    }

    pub(super) fn register(
        &self,
        roles: Roles,
        address: &str,
        http: SocketAddr,
    ) -> Vec<(Role, Registration)> {
        let http = http.to_string();
        let all = [
            (Role::Receive, roles.receive, http.as_str()),
            (Role::Admin, roles.admin, http.as_str()),
            (Role::Center, roles.center, address),
            (Role::Worker, roles.worker, address),
        ];
        let ours = all.into_iter().filter(|(_, has, _)| *has);
        ours.map(|(role, _, address)| {
            let mut entry = Instance::new(role, self.name.clone(), address);
            entry.id = self.id;
            (role, self.registry.register(entry))
        })
        .collect()
    }

    pub(super) fn receive(
        &self,
        outlet: &Outlet,
        owners: Arc<Owners>,
        registrations: &[(Role, Registration)],
        (worker, center): (Option<Arc<Worker>>, Option<Arc<Center>>),
    ) -> Arc<Receive> {
        let states: Vec<_> = registrations
            .iter()
            .filter(|(role, _)| matches!(role, Role::Center | Role::Worker))
            .map(|(role, registration)| (*role, registration.states()))
            .collect();
        let (catalog, id) = (self.catalog.clone(), self.id);
        let backed_up = center.clone();
        Arc::new(Receive::new(Parts {
            bus: self.bus.clone(),
            shards: self.config.serve.shards,
            largest: self.log.largest(),
            sinks: outlet.sinks.clone(),
            clock: self.clock.clone(),
            max_delay: self.config.delay.longest,
            owners,
            lacks: Box::new(move || {
                let mut lacks = lacks(&states, worker.as_deref());
                if catalog.is_drained(id) {
                    lacks.push("an operator drains this instance".to_owned());
                } else if center.as_deref().is_some_and(Center::has_left) {
                    let lack =
                        "a shard goes no further here, so the center has given up all of them";
                    lacks.push(lack.to_owned());
                }
                lacks
            }),
            doubts: Box::new(move || backup::doubts(backed_up.as_deref())),
        }))
    }

    pub(super) fn admin(&self, owners: Arc<Owners>) -> Admin {
        let directories = Role::ALL.map(|role| self.registry.watch(role)).to_vec();
        Admin {
            overview: Overview {
                cluster: self.config.serve.cluster.clone(),
                shards: self.config.serve.shards,
                directories: directories.clone(),
                owners,
                catalog: self.catalog.clone(),
            },
            placements: Placements {
                catalog: self.catalog.clone(),
                workers: self.registry.watch(Role::Worker),
            },
            instances: Instances {
                catalog: self.catalog.clone(),
                registry: self.registry.clone(),
                directories,
            },
        }
    }
}

/// Waits for the registry for a moment. One that is away is waited for in the background: nothing rests on it.
pub(super) async fn wait_until_listed(states: Vec<watch::Receiver<RegistrationState>>) {
    let listed = async {
        for mut state in states {
            let is_listed = |state: &RegistrationState| *state == RegistrationState::Listed;
            let _ = state.wait_for(is_listed).await;
        }
    };
    if timeout(LISTED_WITHIN, listed).await.is_err() {
        warn!(
            "the registry does not answer: other processes of the cluster do not see this one yet"
        );
    }
}

/// What keeps the roles of this process from their work.
fn lacks(
    registered: &[(Role, watch::Receiver<RegistrationState>)],
    worker: Option<&Worker>,
) -> Vec<String> {
    let mut lacks: Vec<String> = registered
        .iter()
        .filter_map(|(role, state)| match *state.borrow() {
            RegistrationState::Listed => None,
            RegistrationState::Removed => {
                Some(format!("an operator took the {role} off the registry"))
            }
            _ => Some(format!("the {role} is not in the registry")),
        })
        .collect();
    if worker.is_some_and(Worker::is_draining) {
        lacks.push("the worker is draining".to_owned());
    }
    lacks
}

/// What is set for topics: their waits in the configuration of this process, their workers in the catalog.
struct Topics {
    waits: laneway_delay::Options,
    catalog: Arc<SharedCatalog>,
}

impl laneway_center::Topics for Topics {
    fn placement(&self, topic: &str) -> Arc<Placement> {
        self.catalog.placement(topic)
    }

    fn waits(&self, topic: &str) -> Schedule {
        let of_topic = self.waits.topic_retry.get(topic);
        of_topic.unwrap_or(&self.waits.retry).clone()
    }
}

/// The same 16 bytes as the entry in the registry.
fn instance(id: InstanceId) -> record::Instance {
    let digits: String = id
        .to_string()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or_default();
    record::Instance(number.to_be_bytes())
}

/// The name of the machine, for people.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.or_else(|_| std::fs::read_to_string("/etc/hostname"));
    let name = name.unwrap_or_default();
    match name.trim() {
        "" => "laneway".to_owned(),
        name => name.to_owned(),
    }
}

//! `laneway serve`: starts what there is, says what it is, and stops when it is told to.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use laneway::Bus;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::build_info::BUILD;
use crate::config::{Config, Effective, LogFormat, Reach, secret};
use crate::delay::{self, Outlet};
use crate::http::accept::{self, Limits, Stopped};
use crate::http::{App, BATCHES, Condition, Metrics, Readiness, Shared, router, watch};
use crate::messages::Messages;
use crate::{logging, open_files};

/// What closing files takes when requests have used up all the time there was.
const LEAST_TO_CLOSE: Duration = Duration::from_secs(1);

/// Runs the server until a signal stops it.
pub(crate) fn serve(effective: &Effective) -> anyhow::Result<()> {
    logging::start(&effective.config.log);
    open_files::raise(&effective.config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match runtime.block_on(run(effective)) {
        Ending::Clean(result) => {
            // Connections that were cut are dropped here, without waiting for them.
            runtime.shutdown_background();
            result
        }
        Ending::Abrupt(error) => {
            let _ = writeln!(io::stderr(), "laneway: {error:#}");
            // Clients of brokers wait for their servers when they are dropped, so nothing is. What was accepted
            // is on disk.
            std::process::exit(1)
        }
    }
}

/// How it ended.
enum Ending {
    /// Everything that was started is stopped.
    Clean(anyhow::Result<()>),
    /// Something is still running: a second signal came, or the time was up.
    Abrupt(anyhow::Error),
}

impl From<anyhow::Error> for Ending {
    fn from(error: anyhow::Error) -> Self {
        Self::Clean(Err(error))
    }
}

async fn run(effective: &Effective) -> Ending {
    // Before the server says that it runs: a signal may come right after that.
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return error.into(),
    };
    let (listener, address, service) = tokio::select! {
        started = start(effective) => match started {
            Ok(started) => started,
            Err(error) => return error.into(),
        },
        // A bus that is away can make the start take long.
        name = signals.next() => return Ending::Abrupt(anyhow!("stopped by {name} before it had started")),
    };
    run_until_stopped(effective, listener, address, &service, &mut signals).await
}

/// What this process does.
#[derive(Debug)]
enum Service {
    /// All of it, by itself.
    Alone(delay::Service),
    /// Its part in a cluster.
    #[cfg(feature = "cluster")]
    Member(Box<crate::cluster::Member>),
}

impl Service {
    async fn start(config: &Config, address: SocketAddr) -> anyhow::Result<Self> {
        #[cfg(feature = "cluster")]
        if config.serve.log.is_some() {
            let member = crate::cluster::Member::start(config, address).await?;
            return Ok(Self::Member(Box::new(member)));
        }
        let _ = address;
        Ok(Self::Alone(delay::Service::start(config).await?))
    }

    async fn stop(&self, limit: Duration) -> anyhow::Result<()> {
        match self {
            Self::Alone(service) => service.stop(limit).await,
            #[cfg(feature = "cluster")]
            Self::Member(member) => member.stop(limit).await,
        }
    }

    fn outlet(&self) -> &Outlet {
        match self {
            Self::Alone(service) => &service.outlet,
            #[cfg(feature = "cluster")]
            Self::Member(member) => &member.outlet,
        }
    }

    fn messages(&self) -> Arc<dyn Messages> {
        match self {
            Self::Alone(service) => Arc::new(service.delays.clone()),
            #[cfg(feature = "cluster")]
            Self::Member(member) => member.receive.clone(),
        }
    }

    /// All that have to answer for this server to be ready.
    fn buses(&self) -> Vec<Bus> {
        let log_bus = match self {
            Self::Alone(_) => None,
            #[cfg(feature = "cluster")]
            Self::Member(member) => member.log_bus.clone(),
        };
        let bus = self.outlet().bus.clone();
        std::iter::once(bus).chain(log_bus).collect()
    }

    fn register_metrics(&self, registry: &mut Registry) {
        match self {
            Self::Alone(_) => {
                let _ = registry;
            }
            #[cfg(feature = "cluster")]
            Self::Member(member) => registry.register_collector(Box::new(member.metrics())),
        }
    }

    /// Where messages are kept, for people.
    fn kept_in(&self, directory: &str) -> String {
        match self {
            Self::Alone(_) => directory.to_owned(),
            #[cfg(feature = "cluster")]
            Self::Member(_) => format!("the log of the cluster, views of it in {directory}"),
        }
    }

    #[cfg(feature = "cluster")]
    fn admin(&self) -> Option<Arc<crate::cluster::Admin>> {
        match self {
            Self::Alone(_) => None,
            Self::Member(member) => member.admin.clone(),
        }
    }

    /// Waits until an operator has removed this process from its cluster.
    async fn removed(&self) {
        match self {
            Self::Alone(_) => std::future::pending().await,
            #[cfg(feature = "cluster")]
            Self::Member(member) => member.removed().await,
        }
    }
}

async fn start(effective: &Effective) -> anyhow::Result<(TcpListener, SocketAddr, Service)> {
    if let Some(log) = &effective.config.serve.log
        && cfg!(not(feature = "cluster"))
    {
        let (log, origin) = (secret::without_secrets(log), effective.origin("serve.log"));
        bail!(
            "{log} (serve.log, {origin}) needs the feature `cluster`, which this program was built without: build it \
             with `--features cluster` and that of the broker"
        );
    }
    let listener = bind(effective).await?;
    let address = listener
        .local_addr()
        .context("cannot find out the address that the server listens on")?;
    let service = Service::start(&effective.config, address).await?;
    Ok((listener, address, service))
}

async fn run_until_stopped(
    effective: &Effective,
    listener: TcpListener,
    address: SocketAddr,
    service: &Service,
    signals: &mut Signals,
) -> Ending {
    let config = &effective.config;
    let app = app(config, service);
    announce(address, config, service);
    let (watched, buses) = (app.clone(), service.buses());
    tokio::spawn(async move {
        let start = || watch(watched.clone(), buses.clone());
        watched
            .readiness
            .supervise("watching readiness", start)
            .await;
    });

    let stop = Notify::new();
    let mut server = pin!(accept::run(
        listener,
        router(app.clone()),
        limits(config),
        app.metrics.connections.clone(),
        stop.notified(),
    ));
    let (name, is_removed) = tokio::select! {
        _ = &mut server => return Ending::Abrupt(anyhow!("the server ended by itself")),
        name = signals.next() => (name, false),
        () = service.removed() => ("removed by an operator", true),
    };
    info!(
        signal = name,
        "stopping: no new connections, finishing requests in flight"
    );
    app.readiness.start_draining();
    stop.notify_one();
    let limit = config.serve.shutdown_timeout;
    let deadline = Instant::now() + limit;
    let stopping = async {
        let stopped = server.await;
        // What came in is answered. What is due from now on fires when the server runs again.
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(LEAST_TO_CLOSE);
        match timeout(left, service.stop(left)).await {
            Ok(Ok(())) if is_removed => Ending::Clean(Err(anyhow!(
                "an operator has removed this instance from the cluster: start it again to join it as a new one"
            ))),
            Ok(Ok(())) => Ending::Clean(report(stopped, config)),
            Ok(Err(error)) => Ending::Clean(Err(error)),
            Err(_) => Ending::Abrupt(anyhow!(
                "cut off after {limit:?} (serve.shutdown_timeout): the bus or the disk does not answer; what was \
                 accepted is kept"
            )),
        }
    };
    tokio::select! {
        ending = stopping => ending,
        name = signals.next() => Ending::Abrupt(anyhow!("stopped at once by a second signal ({name})")),
    }
}

fn app(config: &Config, service: &Service) -> App {
    let Outlet {
        client,
        metrics: delay_metrics,
        bus,
        ..
    } = service.outlet();
    let delays = service.messages();
    let readiness = Readiness::default();
    let metrics = Metrics::new(|registry| {
        // The figures of the bus have the prefix in their names.
        bus.register_metrics(registry);
        let registry = registry.sub_registry_with_prefix("laneway");
        delay_metrics.register(registry, delays.clone(), client.clone());
        let directory = config.serve.data_dir.clone();
        let condition = Condition::new(readiness.clone(), delays.clone(), directory);
        registry.register_collector(Box::new(condition));
        service.register_metrics(registry);
    });
    App::new(Shared {
        readiness,
        metrics,
        delays,
        delay_metrics: delay_metrics.clone(),
        max_body: config.serve.max_body as usize,
        batches: Semaphore::new(BATCHES),
        roles: config.serve.roles,
        #[cfg(feature = "cluster")]
        admin: service.admin(),
        sorakaq: config.serve.sorakaq,
        has_bus: config.serve.bus.is_some(),
        room: Semaphore::new(BATCHES * config.serve.max_body as usize),
        hosts: config.serve.hosts.clone(),
    })
}

fn limits(config: &Config) -> Limits {
    Limits {
        max_connections: config.serve.max_connections,
        header_timeout: config.serve.header_timeout,
        write_timeout: config.serve.write_timeout,
        shutdown_timeout: config.serve.shutdown_timeout,
    }
}

async fn bind(effective: &Effective) -> anyhow::Result<TcpListener> {
    let address = effective.config.serve.listen;
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program has it, perhaps another laneway: stop that one, or choose another \
             address with --listen (port 0 takes any free port)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: choose one that it has, such as 127.0.0.1"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not take that port: choose one above 1023 with --listen"
        }
        _ => "choose another address with --listen",
    };
    let origin = effective.origin("serve.listen");
    bail!("cannot listen on {address} (serve.listen, {origin}): {error}\n  {advice}")
}

/// Tells the operator what is there, and what to know about it: on standard output for people, as
/// one event of the log for programs.
fn announce(address: SocketAddr, config: &Config, service: &Service) {
    let version = BUILD.version;
    let deadline = config.serve.shutdown_timeout;
    // Absolute: started elsewhere, a relative one is another directory.
    let directory = std::path::absolute(&config.serve.data_dir);
    let directory = directory.unwrap_or_else(|_| config.serve.data_dir.clone());
    let directory = directory.display();
    let bus = match config.serve.bus.as_deref() {
        Some(address) => secret::without_secrets(address),
        None => "none; --bus names one".to_owned(),
    };
    let outlet = service.outlet();
    let kept = service.kept_in(&directory.to_string());
    let reach = match (&config.callback.allow, outlet.reach.is_empty()) {
        (_, true) => "public addresses only".to_owned(),
        (Reach::Auto, false) => {
            "public addresses, and this machine, because only this machine reaches the server; \
             change that with --callback-allow"
                .to_owned()
        }
        (Reach::Listed(_), false) => format!("public addresses, and {}", outlet.reach),
    };
    let signed = if outlet.signed {
        "signed"
    } else {
        "not signed; set --callback-secrets-file so that receivers can tell who calls"
    };
    info!(%address, version, %directory, bus, signed = outlet.signed, "listening");
    let warning = "other machines may reach this address, and nothing asks for a password yet";
    let is_public = !address.ip().is_loopback();
    if config.log.format == LogFormat::Json {
        // In a container both streams are one, and a line of prose is not JSON.
        if is_public {
            warn!(%address, "{warning}");
        }
        return;
    }
    let warning = if is_public {
        format!("warning: {warning}\n")
    } else {
        String::new()
    };
    let does = if config.serve.roles.receive {
        "delayed messages: POST /v1/messages, or try `laneway delay submit --help`".to_owned()
    } else {
        format!("its roles are {}", config.serve.roles.show())
    };
    let lines = format!(
        "laneway {version} is listening on http://{address}\n\
         {does}\n\
         messages are kept in {kept}; the bus is {bus}\n\
         callbacks may reach {reach}\n\
         callbacks are {signed}\n\
         {warning}\
         stop it with Ctrl-C or SIGTERM; requests in flight get {deadline:?} to finish\n"
    );
    // A server without a standard output is still a server.
    if let Err(error) = io::stdout().write_all(lines.as_bytes()) {
        warn!(%error, "cannot write to standard output");
    }
}

fn report(stopped: Stopped, config: &Config) -> anyhow::Result<()> {
    match stopped {
        Stopped::Drained => {
            info!("stopped: no request is in flight any more");
            Ok(())
        }
        Stopped::Cut { connections } => bail!(
            "cut off after {:?} (serve.shutdown_timeout), with connections still busy: {connections}",
            config.serve.shutdown_timeout
        ),
    }
}

/// What tells the server to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

//! `laneway serve`: starts what there is, says what it is, and stops when it is told to.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::pin;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, Semaphore};
use tracing::{info, warn};

use crate::build_info::BUILD;
use crate::config::{Config, Effective, Reach};
use crate::delay::Service;
use crate::http::accept::{self, Limits, Stopped};
use crate::http::{App, BATCHES, Metrics, Readiness, Shared, router};
use crate::{logging, open_files};

/// Runs the server until a signal stops it.
pub(crate) fn serve(effective: &Effective) -> anyhow::Result<()> {
    logging::start(&effective.config.log);
    open_files::raise(&effective.config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(run(effective));
    // Connections that were cut are dropped here, without waiting for them.
    runtime.shutdown_background();
    result
}

async fn run(effective: &Effective) -> anyhow::Result<()> {
    let config = &effective.config;
    // Before anyone is told that the server runs: whoever knows it may stop it.
    let mut signals = Signals::listen()?;
    let listener = bind(effective).await?;
    let address = listener
        .local_addr()
        .context("cannot find out the address that the server listens on")?;
    let service = Service::start(config).await?;
    let app = app(config, &service);
    announce(address, config, &service);
    info!(%address, version = BUILD.version, "listening");

    let stop = Notify::new();
    let mut server = pin!(accept::run(
        listener,
        router(app.clone()),
        limits(config),
        app.metrics.connections.clone(),
        stop.notified(),
    ));
    let stopped = tokio::select! {
        stopped = &mut server => stopped,
        name = signals.next() => {
            info!(signal = name, "stopping: no new connections, finishing requests in flight");
            app.readiness.start_draining();
            stop.notify_one();
            tokio::select! {
                stopped = &mut server => stopped,
                name = signals.next() => bail!("stopped at once by a second signal ({name})"),
            }
        }
    };
    // What came in is answered. What is due from now on fires when the server runs again.
    service.stop(config.serve.shutdown_timeout).await?;
    report(stopped, config)
}

fn app(config: &Config, service: &Service) -> App {
    let Service {
        delays,
        client,
        figures,
        ..
    } = service;
    let metrics = Metrics::new(|registry| {
        figures.register(registry, delays.clone(), client.clone());
    });
    App::new(Shared {
        readiness: Readiness::default(),
        metrics,
        delays: delays.clone(),
        client: client.clone(),
        figures: figures.clone(),
        max_body: config.serve.max_body as usize,
        batches: Semaphore::new(BATCHES),
        sorakaq: config.serve.sorakaq,
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

/// Tells the person who started the server what is there, and what to know about it.
fn announce(address: SocketAddr, config: &Config, service: &Service) {
    let version = BUILD.version;
    let deadline = config.serve.shutdown_timeout;
    let directory = config.serve.data_dir.display();
    let bus = config
        .serve
        .bus
        .as_deref()
        .unwrap_or("embedded, in the same directory");
    let reach = match (&config.callback.allow, service.reach.is_empty()) {
        (_, true) => "public addresses only".to_owned(),
        (Reach::Auto, false) => {
            "public addresses, and this machine, because only this machine reaches the server; \
             change that with --callback-allow"
                .to_owned()
        }
        (Reach::Listed(_), false) => format!("public addresses, and {}", service.reach),
    };
    let signed = if service.signed {
        "signed"
    } else {
        "not signed; set --callback-secrets-file so that receivers can tell who calls"
    };
    let warning = if address.ip().is_loopback() {
        ""
    } else {
        "warning: other machines may reach this address, and nothing asks for a password yet\n"
    };
    let lines = format!(
        "laneway {version} is listening on http://{address}\n\
         delayed messages: POST /v1/messages, or try `laneway delay submit --help`\n\
         messages are kept in {directory}; the bus is {bus}\n\
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

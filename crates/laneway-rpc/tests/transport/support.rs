use std::sync::Arc;
use std::time::Duration;

use laneway_rpc::connection::{CenterConnection, WorkerConnection};
use laneway_rpc::proto::{Hello, Ping, Pong, ToCenter, ToWorker, to_center, to_worker};
use laneway_rpc::{CenterCalls, Server, Services, Settings, connect_worker, serve};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Everything that must happen happens within this, on however busy a machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn settings(name: &str) -> Settings {
    let mut settings = Settings::new(Hello {
        cluster: "orders".into(),
        instance: vec![7; 16].into(),
        name: name.into(),
        version: "1".into(),
    });
    settings.connect_timeout = PATIENCE;
    settings.call_timeout = PATIENCE;
    settings
}

pub(crate) fn ping(number: u64) -> ToWorker {
    let frame = Some(to_worker::Frame::Ping(Ping { number }));
    ToWorker { frame }
}

pub(crate) fn pong(number: u64) -> ToCenter {
    let pong = Pong {
        number,
        ..Pong::default()
    };
    let frame = Some(to_center::Frame::Pong(pong));
    ToCenter { frame }
}

pub(crate) fn number(frame: Option<ToWorker>) -> u64 {
    match frame.and_then(|frame| frame.frame) {
        Some(to_worker::Frame::Ping(ping)) => ping.number,
        other => panic!("{other:?} is not a ping"),
    }
}

pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A worker that listens, and the streams that centers open to it.
pub(crate) async fn worker(settings: &Settings) -> (Server, mpsc::Receiver<CenterConnection>) {
    let (accepted, connections) = mpsc::channel(4);
    let services = Services {
        workers: Some(accepted),
        center: None,
    };
    let server = serve(listener().await, settings, services).unwrap();
    (server, connections)
}

/// A stream between a center and a worker, and what serves it.
pub(crate) async fn stream() -> (WorkerConnection, CenterConnection, Server) {
    let (server, mut connections) = worker(&settings("worker")).await;
    let address = server.address().to_string();
    let center = connect_worker(&address, &settings("center")).await.unwrap();
    let worker = connections.recv().await.unwrap();
    (center, worker, server)
}

/// A center that listens.
pub(crate) async fn center(settings: &Settings, center: Arc<dyn CenterCalls>) -> Server {
    let services = Services {
        workers: None,
        center: Some(center),
    };
    serve(listener().await, settings, services).unwrap()
}

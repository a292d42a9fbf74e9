//! Streams to workers, and calls to centers: by channels within this process, and by gRPC to others.

use std::sync::Arc;

use laneway_center::{Connect, ConnectError};
use laneway_delay::BoxFuture;
use laneway_rpc::connection::{WorkerConnection, pair_of};
use laneway_rpc::proto::{Hello, Reply, Request};
use laneway_rpc::{CallError, CenterCalls, CenterClient, Settings, connect_worker};
use laneway_worker::Worker;

use super::owners::Dial;

/// Frames that wait in each direction within a process.
const FRAMES: usize = 1_024;

/// Opens streams to workers.
pub(super) struct Connector {
    pub(super) settings: Settings,
    /// The worker in this process, and the address that it is registered with.
    pub(super) own: Option<(String, Arc<Worker>)>,
}

impl Connect for Connector {
    fn connect<'a>(
        &'a self,
        address: &'a str,
        own: &'a Hello,
    ) -> BoxFuture<'a, Result<WorkerConnection, ConnectError>> {
        Box::pin(async move {
            if let Some((_, worker)) = self.own.as_ref().filter(|(own, _)| own == address) {
                let worker_hello = self.settings.hello.clone();
                let (center, connection) = pair_of(FRAMES, own.clone(), worker_hello);
                worker.serve(connection);
                return Ok(center);
            }
            let settings = Settings {
                hello: own.clone(),
                ..self.settings.clone()
            };
            let connected = connect_worker(address, &settings).await;
            connected.map_err(|error| ConnectError(error.to_string()))
        })
    }
}

/// Makes clients of centers elsewhere.
pub(super) fn dial(settings: Settings) -> Dial {
    Box::new(move |address| match CenterClient::new(address, &settings) {
        Ok(client) => Arc::new(client),
        Err(error) => Arc::new(Unusable(error.to_string())),
    })
}

/// An address of the registry that cannot be one.
struct Unusable(String);

impl CenterCalls for Unusable {
    fn call(&self, _: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let error = CallError::Refused(self.0.clone());
        Box::pin(std::future::ready(Err(error)))
    }
}

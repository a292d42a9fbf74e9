use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{Phase, until};
use crate::client::CLUSTER;
use crate::connection::{CenterConnection, Connection};
use crate::error::to_status;
use crate::handshake::{self, Frame as _};
use crate::proto::center_server::Center;
use crate::proto::worker_server::Worker;
use crate::proto::{self, Hello, Reply, ToCenter, ToWorker};
use crate::settings::HELLO_TIMEOUT;
use crate::stream::{Responses, incoming, outgoing};
use crate::{CenterCalls, Settings};

/// Takes the streams of centers.
pub(super) struct Workers {
    settings: Settings,
    accepted: mpsc::Sender<CenterConnection>,
    phases: watch::Receiver<Phase>,
}

impl Workers {
    pub(super) fn new(
        settings: Settings,
        accepted: mpsc::Sender<CenterConnection>,
        phases: watch::Receiver<Phase>,
    ) -> Self {
        Self {
            settings,
            accepted,
            phases,
        }
    }

    async fn greet(&self, mut from: Streaming<ToWorker>) -> Result<Responses<ToCenter>, Status> {
        let own = &self.settings.hello;
        let peer = handshake::check(from.message().await?, own)?;
        let room = self.accepted.reserve().await;
        let room = room.map_err(|_| Status::unavailable("the worker takes no more centers"))?;
        let hello = ToCenter::of_hello(own.clone());
        let (sender, frames, stop) = outgoing(hello, self.settings.frames);
        let (into, receiver) = mpsc::channel(self.settings.frames.max(1));
        let drained = stop.clone();
        let draining = until(self.phases.clone(), Phase::Draining);
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(incoming(from, into, stop));
            tokio::select! {
                () = &mut ended => return,
                () = draining => {}
            }
            drained.send_replace(true);
            ended.await;
        });
        room.send(Connection {
            peer,
            sender,
            receiver,
        });
        Ok(Responses(frames))
    }
}

#[tonic::async_trait]
impl Worker for Workers {
    type WorkStream = Pin<Box<dyn Stream<Item = Result<ToCenter, Status>> + Send>>;

    async fn work(
        &self,
        request: Request<Streaming<ToWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let greeted = tokio::time::timeout(HELLO_TIMEOUT, self.greet(request.into_inner())).await;
        let frames = greeted.map_err(|_| Status::deadline_exceeded("no hello in time"))??;
        Ok(Response::new(Box::pin(frames)))
    }
}

/// Answers calls.
pub(super) struct Calls {
    own: Hello,
    center: Arc<dyn CenterCalls>,
}

impl Calls {
    pub(super) fn new(own: Hello, center: Arc<dyn CenterCalls>) -> Self {
        Self { own, center }
    }
}

#[tonic::async_trait]
impl Center for Calls {
    async fn call(&self, request: Request<proto::Request>) -> Result<Response<Reply>, Status> {
        let cluster = request.metadata().get_bin(CLUSTER);
        let cluster = cluster.and_then(|cluster| cluster.to_bytes().ok());
        let cluster = cluster.as_deref().unwrap_or_default();
        handshake::same_cluster(&String::from_utf8_lossy(cluster), &self.own)?;
        let reply = self.center.call(request.into_inner()).await;
        reply.map(Response::new).map_err(to_status)
    }
}

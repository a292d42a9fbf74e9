use std::pin::Pin;

use laneway_rpc::proto::worker_client::WorkerClient;
use laneway_rpc::proto::worker_server::{Worker, WorkerServer};
use laneway_rpc::proto::{ToCenter, ToWorker};
use laneway_rpc::{CallError, Error, connect_worker};
use tokio::net::TcpSocket;
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::support::{PATIENCE, listener, ping, pong, settings, worker};

fn refusal(error: Error) -> String {
    match error {
        Error::Call(CallError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_cluster_is_refused_by_name() {
    let (server, mut connections) = worker(&settings("worker")).await;
    let address = server.address().to_string();
    let mut other = settings("center");
    other.hello.cluster = "invoices".into();
    let text = refusal(connect_worker(&address, &other).await.unwrap_err());
    assert!(
        text.contains("\"orders\"") && text.contains("\"invoices\""),
        "{text}"
    );
    let mut nameless = settings("center");
    nameless.hello.instance = vec![1; 3].into();
    let text = refusal(connect_worker(&address, &nameless).await.unwrap_err());
    assert!(text.contains("hello.instance"), "{text}");
    assert!(connections.try_recv().is_err());

    let center = connect_worker(&address, &settings("center")).await.unwrap();
    assert_eq!(center.peer.name, "worker");
    assert_eq!(connections.recv().await.unwrap().peer.name, "center");
}

#[tokio::test]
async fn a_stream_without_a_hello_is_refused() {
    let (server, mut connections) = worker(&settings("worker")).await;
    let address = format!("http://{}", server.address());
    let channel = Endpoint::from_shared(address).unwrap().connect_lazy();
    let mut client = WorkerClient::new(channel);
    let status = client.work(tokio_stream::once(ping(1))).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("hello"), "{status}");
    let silent = timeout(PATIENCE, client.work(tokio_stream::pending())).await;
    let status = silent.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(connections.try_recv().is_err());
}

/// A worker that begins with another frame, or says nothing.
struct Rude(Option<ToCenter>);

#[tonic::async_trait]
impl Worker for Rude {
    type WorkStream = Pin<Box<dyn Stream<Item = Result<ToCenter, Status>> + Send>>;

    async fn work(
        &self,
        _: Request<Streaming<ToWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        Ok(Response::new(match self.0.clone() {
            Some(frame) => Box::pin(tokio_stream::once(Ok(frame))),
            None => Box::pin(tokio_stream::pending()),
        }))
    }
}

#[tokio::test]
async fn a_worker_without_a_hello_is_left() {
    for frame in [Some(pong(1)), None] {
        let listener = listener().await;
        let address = listener.local_addr().unwrap().to_string();
        let rude = WorkerServer::new(Rude(frame.clone()));
        let serving = tonic::transport::Server::builder()
            .add_service(rude)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let serving = tokio::spawn(serving);
        let error = connect_worker(&address, &settings("center"))
            .await
            .unwrap_err();
        if frame.is_some() {
            assert!(refusal(error).contains("hello"));
        } else {
            assert_eq!(error, Error::Call(CallError::Deadline));
        }
        serving.abort();
    }
}

#[tokio::test]
async fn nothing_that_listens_and_no_address_are_told_apart() {
    // It is bound and does not listen, so that no other test gets the port.
    let bound = TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = bound.local_addr().unwrap().to_string();
    let error = connect_worker(&free, &settings("center"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Call(CallError::Unreachable(_))),
        "{error:?}"
    );
    assert!(error.is_retryable());
    for wrong in ["", "here", "a b:1", "host:1/path", "host:99999"] {
        let error = connect_worker(wrong, &settings("center"))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { .. }),
            "{wrong}: {error:?}"
        );
        assert!(!error.is_retryable());
    }
}

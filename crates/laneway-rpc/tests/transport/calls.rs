use std::sync::Arc;
use std::time::Duration;

use laneway_delay::BoxFuture;
use laneway_rpc::proto::{Page, Reply, Request, reply::What, request};
use laneway_rpc::{CallError, CenterCalls, CenterClient, Services, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use waiting::wait_for;

use crate::support::{PATIENCE, center, listener, settings};

/// Answers with the shard of the request; shard 1 is refused, shard 2 takes for ever, shard 3 a while.
struct Echo(mpsc::UnboundedSender<u32>);

impl CenterCalls for Echo {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let _ = self.0.send(request.shard);
        Box::pin(async move {
            match request.shard {
                1 => return Err(CallError::Refused("no such shard".into())),
                2 => std::future::pending().await,
                3 => tokio::time::sleep(Duration::from_millis(200)).await,
                _ => {}
            }
            Ok(reply(request.shard))
        })
    }
}

fn echo() -> Arc<Echo> {
    Arc::new(Echo(mpsc::unbounded_channel().0))
}

fn ask(shard: u32) -> Request {
    let what = Some(request::What::LookUp("a".into()));
    Request { shard, what }
}

fn reply(shard: u32) -> Reply {
    let page = Page {
        messages: Vec::new(),
        has_more: shard.is_multiple_of(2),
    };
    Reply {
        what: Some(What::Page(page)),
    }
}

#[tokio::test]
async fn calls_are_answered_or_refused() {
    let server = center(&settings("center"), echo()).await;
    let address = server.address().to_string();
    let client = CenterClient::new(&address, &settings("receive")).unwrap();
    let calls = (10..200).map(|shard| {
        let client = client.clone();
        tokio::spawn(async move { (shard, client.call(ask(shard)).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (shard, answer) = call.await.unwrap();
        assert_eq!(answer, Ok(reply(shard)));
    }
    let refused = client.call(ask(1)).await.unwrap_err();
    assert_eq!(refused, CallError::Refused("no such shard".into()));
    assert!(!refused.is_retryable());

    let mut other = settings("receive");
    other.hello.cluster = "invoices".into();
    let other = CenterClient::new(&address, &other).unwrap();
    match other.call(ask(10)).await {
        Err(CallError::Refused(text)) => {
            assert!(
                text.contains("\"orders\"") && text.contains("\"invoices\""),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_has_a_deadline() {
    let server = center(&settings("center"), echo()).await;
    let address = server.address().to_string();
    let client = CenterClient::new(&address, &settings("receive")).unwrap();
    let hasty = client.clone().deadline(Duration::from_millis(100));
    // The center itself would never answer.
    let error = timeout(PATIENCE, hasty.call(ask(2))).await.unwrap();
    let error = error.unwrap_err();
    assert_eq!(error, CallError::Deadline);
    assert!(error.is_retryable());
    // Others are not held up by it.
    assert_eq!(client.call(ask(10)).await, Ok(reply(10)));
}

#[tokio::test]
async fn a_client_connects_again_when_the_center_is_back() {
    let server = center(&settings("center"), echo()).await;
    let address = server.address();
    let client = CenterClient::new(&address.to_string(), &settings("receive")).unwrap();
    assert_eq!(client.call(ask(4)).await, Ok(reply(4)));
    drop(server);
    wait_for!(matches!(
        client.call(ask(4)).await,
        Err(CallError::Unreachable(_))
    ));
    let mut back = TcpListener::bind(address).await;
    wait_for!({
        if back.is_err() {
            back = TcpListener::bind(address).await;
        }
        back.is_ok()
    });
    let services = Services {
        workers: None,
        center: Some(echo()),
    };
    let _server = serve(back.unwrap(), &settings("center"), services).unwrap();
    wait_for!(client.call(ask(4)).await == Ok(reply(4)));
}

#[tokio::test]
async fn a_center_that_drains_finishes_its_calls() {
    let (called, mut calls) = mpsc::unbounded_channel();
    let server = center(&settings("center"), Arc::new(Echo(called))).await;
    let address = server.address().to_string();
    let client = CenterClient::new(&address, &settings("receive")).unwrap();
    let own = client.clone();
    let call = tokio::spawn(async move { own.call(ask(3)).await });
    assert_eq!(calls.recv().await, Some(3));
    timeout(2 * PATIENCE, server.close(PATIENCE)).await.unwrap();
    assert_eq!(call.await.unwrap(), Ok(reply(3)));
    assert!(client.call(ask(4)).await.is_err());
}

#[tokio::test]
async fn a_service_that_is_not_there_refuses() {
    let server = serve(listener().await, &settings("none"), Services::default()).unwrap();
    let address = server.address().to_string();
    let client = CenterClient::new(&address, &settings("receive")).unwrap();
    let error = client.call(ask(4)).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn garbage_harms_nothing_and_silence_is_cut_off() {
    let server = center(&settings("center"), echo()).await;
    let address = server.address();
    let silent = TcpStream::connect(address).await.unwrap();
    let cut = tokio::spawn(async move {
        let mut silent = silent;
        let mut bytes = Vec::new();
        let read = silent.read_to_end(&mut bytes);
        timeout(PATIENCE, read).await.map(drop)
    });
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let broken = [&preface[..], &[0xff; 64]].concat();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 100],
        &broken,
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(garbage).await;
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        let _ = timeout(PATIENCE, read).await.unwrap();
    }
    let client = CenterClient::new(&address.to_string(), &settings("receive")).unwrap();
    assert_eq!(client.call(ask(4)).await, Ok(reply(4)));
    cut.await.unwrap().unwrap();
}

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use laneway_rpc::connection::{CenterConnection, WorkerConnection, pair};
use laneway_rpc::proto::{Content, Go, ToWorker, to_worker};
use tokio::time::{sleep, timeout};
use waiting::wait_for;

use crate::support::{PATIENCE as SOON, number, ping, pong, stream};

/// Frames come back in the order in which they were sent, and the worker notices that the center leaves.
async fn echoes(mut center: WorkerConnection, mut worker: CenterConnection) {
    const FRAMES: u64 = 1_000;
    let echo = tokio::spawn(async move {
        while let Some(frame) = worker.receiver.recv().await {
            worker.sender.send(pong(number(Some(frame)))).await.unwrap();
        }
        // The center has left.
        wait_for!(worker.sender.is_closed());
    });
    let sender = center.sender.clone();
    let sending = tokio::spawn(async move {
        for number in 0..FRAMES {
            sender.send(ping(number)).await.unwrap();
        }
    });
    for number in 0..FRAMES {
        let frame = timeout(SOON, center.receiver.recv()).await.unwrap();
        assert_eq!(frame, Some(pong(number)));
    }
    sending.await.unwrap();
    drop(center);
    timeout(SOON, echo).await.unwrap().unwrap();
}

/// What was sent before an end was given up arrives; then the other end hears of it.
async fn leaves(mut center: WorkerConnection, worker: CenterConnection) {
    for number in 0..10 {
        worker.sender.send(pong(number)).await.unwrap();
    }
    drop(worker);
    for number in 0..10 {
        let frame = timeout(SOON, center.receiver.recv()).await.unwrap();
        assert_eq!(frame, Some(pong(number)));
    }
    assert_eq!(timeout(SOON, center.receiver.recv()).await, Ok(None));
    timeout(SOON, center.sender.closed()).await.unwrap();
    assert!(center.sender.send(ping(1)).await.is_err());
}

/// A sender waits for a slow reader, and all arrives in order.
async fn holds_back(center: WorkerConnection, mut worker: CenterConnection) {
    const FRAMES: u64 = 10_000;
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let payload = Bytes::from(vec![7; 4 << 10]);
    let sending = tokio::spawn(async move {
        for attempt in 0..FRAMES {
            let content = Content {
                payload: payload.clone(),
                ..Content::default()
            };
            let go = Go {
                epoch: attempt,
                content: Some(content),
                ..Go::default()
            };
            let frame = Some(to_worker::Frame::Go(go));
            center.sender.send(ToWorker { frame }).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
        center
    });
    // Until it waits.
    let mut before = u64::MAX;
    wait_for!({
        let now = sent.load(Ordering::Relaxed);
        let is_still = now == before;
        before = now;
        sleep(Duration::from_millis(300)).await;
        is_still && now > 0
    });
    assert!(before < FRAMES / 2, "{before} frames are on their way");
    for epoch in 0..FRAMES {
        let frame = timeout(SOON, worker.receiver.recv()).await.unwrap();
        match frame.and_then(|frame| frame.frame) {
            Some(to_worker::Frame::Go(go)) => assert_eq!(go.epoch, epoch),
            other => panic!("{other:?}"),
        }
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn frames_are_echoed_in_order() {
    let (center, worker) = pair(8);
    echoes(center, worker).await;
    let (center, worker, _server) = stream().await;
    echoes(center, worker).await;
}

#[tokio::test]
async fn an_end_that_leaves_is_noticed_behind_what_it_sent() {
    let (center, worker) = pair(16);
    leaves(center, worker).await;
    let (center, worker, _server) = stream().await;
    leaves(center, worker).await;
}

#[tokio::test]
async fn a_slow_reader_holds_the_sender_back() {
    let (center, worker) = pair(64);
    holds_back(center, worker).await;
    let (center, worker, _server) = stream().await;
    holds_back(center, worker).await;
}

#[tokio::test]
async fn a_killed_worker_is_noticed() {
    let (mut center, _worker, server) = stream().await;
    drop(server);
    assert_eq!(timeout(SOON, center.receiver.recv()).await, Ok(None));
    timeout(SOON, center.sender.closed()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_drains_sends_what_it_has() {
    let (mut center, mut worker, server) = stream().await;
    for number in 0..5 {
        worker.sender.send(pong(number)).await.unwrap();
    }
    let closing = tokio::spawn(server.close(SOON));
    for number in 0..5 {
        let frame = timeout(SOON, center.receiver.recv()).await.unwrap();
        assert_eq!(frame, Some(pong(number)));
    }
    assert_eq!(timeout(SOON, center.receiver.recv()).await, Ok(None));
    assert_eq!(timeout(SOON, worker.receiver.recv()).await, Ok(None));
    timeout(SOON, worker.sender.closed()).await.unwrap();
    timeout(SOON, closing).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_cannot_send_what_it_has_is_cut_off() {
    let (mut center, worker, server) = stream().await;
    let sending = tokio::spawn(async move { while worker.sender.send(pong(1)).await.is_ok() {} });
    timeout(SOON, server.close(Duration::from_millis(200)))
        .await
        .unwrap();
    timeout(SOON, sending).await.unwrap().unwrap();
    while let Some(frame) = timeout(SOON, center.receiver.recv()).await.unwrap() {
        assert_eq!(frame, pong(1));
    }
}

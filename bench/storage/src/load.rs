//! Group commit, the way the broker will do it: publishers send to a queue and wait; one writer
//! drains the queue, commits all it got as one batch with one fsync, then acks all.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::Place;
use crate::body;
use crate::disk;
use crate::engine::{Engine, Record};

/// More than this in one batch would only add latency.
const BATCH: usize = 1024;

struct Publish {
    stream: u16,
    size: usize,
    ack: oneshot::Sender<u64>,
}

/// Runs the writer until the queue closes or a commit fails.
fn commit_loop(
    mut engine: Box<dyn Engine>,
    streams: u16,
    queue: &mut mpsc::Receiver<Publish>,
    batches: &AtomicU64,
) -> Result<()> {
    let mut next = vec![0u64; usize::from(streams)];
    for (stream, next) in (0..).zip(&mut next) {
        // Only `write` starts on something old, and that is small.
        while let Ok(count @ 1..) = engine.scan(stream, *next, 10_000, &mut |_, _| {}) {
            *next += count as u64;
        }
    }
    let mut waiting = Vec::with_capacity(BATCH);
    let mut bodies: Vec<Vec<u8>> = vec![Vec::new(); BATCH];
    while queue.blocking_recv_many(&mut waiting, BATCH) > 0 {
        let offsets: Vec<u64> = waiting
            .iter()
            .map(|publish| {
                let next = &mut next[usize::from(publish.stream)];
                *next += 1;
                *next - 1
            })
            .collect();
        for ((publish, offset), body) in waiting.iter().zip(&offsets).zip(&mut bodies) {
            body::fill(body, publish.stream, *offset, publish.size);
        }
        let batch: Vec<_> = waiting
            .iter()
            .zip(&offsets)
            .zip(&bodies)
            .map(|((publish, offset), body)| Record {
                stream: publish.stream,
                offset: *offset,
                body,
            })
            .collect();
        engine.append(&batch)?;
        batches.fetch_add(1, Ordering::Relaxed);
        for (publish, offset) in waiting.drain(..).zip(offsets) {
            let _ = publish.ack.send(offset);
        }
    }
    Ok(())
}

/// Measures appends per second and their latency.
pub(crate) fn appends(place: &Place, publishers: usize, size: usize, seconds: f64) -> Result<()> {
    let engine = place.engine.open(&place.directory, place.streams)?;
    let streams = place.streams;
    let (sender, mut queue) = mpsc::channel(4096);
    let batches = Arc::new(AtomicU64::new(0));
    let measuring = Arc::new(AtomicBool::new(false));
    let writer = {
        let batches = batches.clone();
        thread::spawn(move || commit_loop(engine, streams, &mut queue, &batches))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()?;
    let mut latencies = Vec::new();
    let elapsed = runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..publishers)
            .map(|publisher| {
                let (sender, stop, measuring) = (sender.clone(), stop.clone(), measuring.clone());
                tokio::spawn(async move {
                    let mut latencies = Vec::new();
                    let mut stream = publisher;
                    while !stop.load(Ordering::Relaxed) {
                        stream += 1;
                        let (ack, acked) = oneshot::channel();
                        let begun = Instant::now();
                        let publish = Publish {
                            stream: u16::try_from(stream % usize::from(streams)).unwrap_or(0),
                            size,
                            ack,
                        };
                        if sender.send(publish).await.is_err() || acked.await.is_err() {
                            break;
                        }
                        if measuring.load(Ordering::Relaxed) {
                            latencies.push(
                                u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
                            );
                        }
                    }
                    latencies
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        batches.store(0, Ordering::Relaxed);
        measuring.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        measuring.store(false, Ordering::Relaxed);
        let elapsed = begun.elapsed();
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            latencies.extend(task.await.unwrap_or_default());
        }
        elapsed
    });
    drop(sender);
    let count = latencies.len();
    latencies.sort_unstable();
    let percentile = |p: usize| latencies.get(count * p / 100).copied().unwrap_or(0);
    println!(
        "{}",
        json!({
            "per_second": count as f64 / elapsed.as_secs_f64(),
            "p50_us": percentile(50),
            "p99_us": percentile(99),
            "batch": count as f64 / batches.load(Ordering::Relaxed).max(1) as f64,
            "peak_mib": disk::resident().1,
        })
    );
    match writer.join() {
        Ok(result) => result,
        Err(_) => anyhow::bail!("the writer panicked"),
    }
}

/// Publishes without end. Each ack becomes a line `stream offset`. The first failed commit ends it,
/// or, with `reopen`, closes the engine and opens it again until that works.
pub(crate) fn write(place: Place, publishers: usize, size: usize, reopen: bool) -> Result<()> {
    let mut engine = place.engine.open(&place.directory, place.streams)?;
    let streams = place.streams;
    let (sender, mut queue) = mpsc::channel(4096);
    let writer = thread::spawn(move || {
        loop {
            let Err(error) = commit_loop(engine, streams, &mut queue, &AtomicU64::new(0)) else {
                return;
            };
            println!("failed {error:#}");
            if !reopen {
                std::process::exit(3);
            }
            engine = loop {
                thread::sleep(Duration::from_millis(200));
                match place.engine.open(&place.directory, streams) {
                    Ok(engine) => break engine,
                    Err(error) => println!("failed to reopen: {error:#}"),
                }
            };
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..publishers)
            .map(|publisher| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut stream = publisher;
                    loop {
                        stream += 1;
                        let stream = u16::try_from(stream % usize::from(streams)).unwrap_or(0);
                        let (ack, acked) = oneshot::channel();
                        let publish = Publish { stream, size, ack };
                        if sender.send(publish).await.is_err() {
                            return;
                        }
                        // Refused: the next one may be luckier.
                        let Ok(offset) = acked.await else {
                            continue;
                        };
                        let line = format!("{stream} {offset}\n");
                        let _ = std::io::stdout().lock().write_all(line.as_bytes());
                    }
                })
            })
            .collect();
        for task in tasks {
            let _ = task.await;
        }
    });
    drop(sender);
    let _ = writer.join();
    Ok(())
}

//! What happens to a log besides appending: filling, opening, reading, dropping.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::Place;
use crate::body;
use crate::disk;
use crate::engine::{Engine, Record};

const BATCH: u64 = 1000;
const PAGE: usize = 1000;

pub(crate) fn fill(place: &Place, records: u64, size: usize, hold: bool) -> Result<()> {
    let mut engine = place.engine.open(&place.directory, place.streams)?;
    let begun = Instant::now();
    append(engine.as_mut(), place.streams, 0, records, size)?;
    let elapsed = begun.elapsed();
    let used = disk::used(&place.directory)?;
    let (resident, peak) = disk::resident();
    println!(
        "{}",
        json!({
            "per_second": records as f64 / elapsed.as_secs_f64(),
            "bytes_per_record": used as f64 / records as f64,
            "resident_mib": resident,
            "peak_mib": peak,
        })
    );
    if hold {
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn append(
    engine: &mut dyn Engine,
    streams: u16,
    from: u64,
    records: u64,
    size: usize,
) -> Result<()> {
    let mut bodies = vec![Vec::new(); usize::try_from(BATCH)?];
    for batch in 0..records / BATCH {
        let ids: Vec<_> = (from + batch * BATCH..from + (batch + 1) * BATCH)
            .map(|number| {
                (
                    u16::try_from(number % u64::from(streams)).unwrap_or(0),
                    number / u64::from(streams),
                )
            })
            .collect();
        for ((stream, offset), body) in ids.iter().zip(&mut bodies) {
            body::fill(body, *stream, *offset, size);
        }
        let batch: Vec<_> = ids
            .iter()
            .zip(&bodies)
            .map(|(&(stream, offset), body)| Record {
                stream,
                offset,
                body,
            })
            .collect();
        engine.append(&batch)?;
    }
    Ok(())
}

pub(crate) fn open(place: &Place, records: u64) -> Result<()> {
    let begun = Instant::now();
    let engine = place.engine.open(&place.directory, place.streams)?;
    let opened = begun.elapsed();
    let reading = Instant::now();
    let per_stream = records / u64::from(place.streams);
    for stream in 0..place.streams {
        let mut last = None;
        engine.scan(stream, per_stream - 1, 10, &mut |offset, _| {
            last = Some(offset);
        })?;
        ensure!(
            last == Some(per_stream - 1),
            "stream {stream} ends at {last:?}, not {}",
            per_stream - 1
        );
    }
    println!(
        "{}",
        json!({
            "open_ms": opened.as_secs_f64() * 1e3,
            "first_read_ms": reading.elapsed().as_secs_f64() * 1e3,
            "resident_mib": disk::resident().0,
        })
    );
    // What matters was measured: leave closing to the next open.
    std::process::exit(0);
}

/// Counts the records of a stream by paging through them; `each` sees every one.
fn page_through(
    engine: &dyn Engine,
    stream: u16,
    from: u64,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<u64> {
    let mut next = from;
    loop {
        let mut last = None;
        let count = engine.scan(stream, next, PAGE, &mut |offset, body| {
            last = Some(offset);
            each(offset, body);
        })?;
        match last {
            Some(last) => next = last + 1,
            None => return Ok(next),
        }
        if count < PAGE {
            return Ok(next);
        }
    }
}

pub(crate) fn scan(place: &Place) -> Result<()> {
    let engine = place.engine.open(&place.directory, place.streams)?;
    let begun = Instant::now();
    let (mut count, mut bytes) = (0u64, 0);
    for stream in 0..place.streams {
        page_through(engine.as_ref(), stream, 0, &mut |_, body| {
            count += 1;
            bytes += body.len();
        })?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({ "per_second": count as f64 / seconds, "mib_per_second": bytes as f64 / seconds / 1_048_576.0 })
    );
    Ok(())
}

pub(crate) fn tail(place: &Place) -> Result<()> {
    let mut engine = place.engine.open(&place.directory, place.streams)?;
    let mut next = 0u64;
    let mut took = Vec::new();
    let bodies: Vec<_> = (0..16).map(|_| vec![b'x'; 128]).collect();
    // Enough to pass a few memtables and checkpoints on the way.
    append(engine.as_mut(), place.streams, 0, 200_000, 128)?;
    next += 200_000 / u64::from(place.streams);
    for _ in 0..500 {
        let batch: Vec<_> = (next..)
            .zip(&bodies)
            .map(|(offset, body)| Record {
                stream: 0,
                offset,
                body,
            })
            .collect();
        engine.append(&batch)?;
        let begun = Instant::now();
        let count = engine.scan(0, next, 100, &mut |_, _| {})?;
        took.push(begun.elapsed());
        ensure!(count == bodies.len(), "read {count} right after the commit");
        next += bodies.len() as u64;
    }
    took.sort_unstable();
    println!(
        "{}",
        json!({ "p50_us": took[250].as_secs_f64() * 1e6, "p99_us": took[495].as_secs_f64() * 1e6 })
    );
    Ok(())
}

pub(crate) fn retain(place: &Place, records: u64) -> Result<()> {
    let mut engine = place.engine.open(&place.directory, place.streams)?;
    let half = records / u64::from(place.streams) / 2;
    let begun = Instant::now();
    for stream in 0..place.streams {
        engine.drop_before(stream, half)?;
    }
    let took = begun.elapsed();
    let begun = Instant::now();
    let mut first = None;
    engine.scan(0, 0, 1, &mut |offset, _| first = Some(offset))?;
    println!(
        "{}",
        json!({
            "drop_ms": took.as_secs_f64() * 1e3,
            "first_left": first,
            "wanted": half,
            "read_from_start_ms": begun.elapsed().as_secs_f64() * 1e3,
        })
    );
    Ok(())
}

/// Appends `records` and drops all but the last `keep` on the way, as retention does.
pub(crate) fn churn(place: &Place, records: u64, keep: u64) -> Result<()> {
    const STEP: u64 = 100_000;
    let mut engine = place.engine.open(&place.directory, place.streams)?;
    let mut most = 0;
    let begun = Instant::now();
    for step in 0..records / STEP {
        append(engine.as_mut(), place.streams, step * STEP, STEP, 128)?;
        let dropped = ((step + 1) * STEP).saturating_sub(keep) / u64::from(place.streams);
        for stream in 0..place.streams {
            engine.drop_before(stream, dropped)?;
        }
        most = most.max(disk::used(&place.directory)?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({
            "per_second": records as f64 / seconds,
            "most_mib": most >> 20,
            "end_mib": disk::used(&place.directory)? >> 20,
            "peak_mib": disk::resident().1,
        })
    );
    Ok(())
}

pub(crate) fn verify(place: &Place, size: usize) -> Result<()> {
    let engine = place.engine.open(&place.directory, place.streams)?;
    let mut counts = Vec::new();
    let mut wrong = Vec::new();
    let mut expected_body = Vec::new();
    for stream in 0..place.streams {
        let mut expected = 0;
        page_through(engine.as_ref(), stream, 0, &mut |offset, body| {
            body::fill(&mut expected_body, stream, offset, size);
            if (offset != expected || body != expected_body) && wrong.len() < 5 {
                wrong.push(format!(
                    "stream {stream}: expected {expected}, found {offset}"
                ));
            }
            expected = offset + 1;
        })?;
        counts.push(expected);
    }
    println!("{}", json!({ "counts": counts, "wrong": wrong }));
    Ok(())
}

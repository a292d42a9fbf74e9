//! Request bodies: how large, how slow, and what is wrong with them.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use laneway_delay::Error;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::Problem;

/// How long a client may take to send its body, not counting how long it is kept waiting.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may send nothing while its body has a share of the common room.
const STALLED: Duration = Duration::from_secs(5);
/// How long a body waits for a share of the common room, or a batch for its turn.
const WAIT: Duration = Duration::from_secs(30);
/// What a body may have of memory without a share of the common room: little enough for every connection.
const FREE: usize = 64 << 10;

/// A body, and its share of the room that all bodies have in common. The share ends with it.
#[derive(Debug)]
pub(super) struct Received<'a> {
    bytes: Vec<u8>,
    _share: Option<SemaphorePermit<'a>>,
}

impl Deref for Received<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a JSON body as bytes, within bounds.
pub(super) async fn read_json<'a>(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    room: &'a Semaphore,
) -> Result<Received<'a>, Problem> {
    // A page of another site can send other types without asking first, but not this one.
    if !is_json(headers) {
        return Err(Problem::not_json());
    }
    read(body, most, room).await
}

/// Whether the request says that its body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Reads a body of any type, within bounds.
///
/// Small bodies cost nothing. From [`FREE`] on a body takes a share of the room that all have in common.
///
/// IMPORTANT: the share is for the whole body, and is taken once. Bodies that took it bit by bit would wait for each other,
/// each with a part of what the others need, until all of them time out.
pub(super) async fn read(
    mut body: Body,
    most: usize,
    room: &Semaphore,
) -> Result<Received<'_>, Problem> {
    let length = body.size_hint().exact();
    // Without a length it may become as large as may be.
    let length = length.map_or(most, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if length > most {
        return Err(Problem::too_large(most));
    }
    let mut deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut share: Option<SemaphorePermit<'_>> = None;
    loop {
        let until = match share {
            Some(_) => deadline.min(Instant::now() + STALLED),
            None => deadline,
        };
        let frame = timeout_at(until, next(&mut body)).await;
        let Some(data) = frame.map_err(|_| Problem::too_slow())?? else {
            break;
        };
        if bytes.len() + data.len() > most {
            return Err(Problem::too_large(most));
        }
        if bytes.len() + data.len() > FREE && share.is_none() {
            let began = Instant::now();
            let all = u32::try_from(length.saturating_sub(FREE)).unwrap_or(u32::MAX);
            share = Some(in_turn(room.acquire_many(all)).await?);
            deadline += began.elapsed();
            bytes.reserve_exact(length - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    if let Some(share) = &mut share {
        let unused = length.saturating_sub(bytes.len());
        drop(share.split(unused));
    }
    Ok(Received {
        bytes,
        _share: share,
    })
}

/// The next piece of a body, and nothing at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        let frame = frame.map_err(|error| {
            let detail = format!("the body broke off: {error}");
            Problem::malformed(None, detail)
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Waits for a permit, within bounds.
pub(super) async fn in_turn<'a>(
    permit: impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>,
) -> Result<SemaphorePermit<'a>, Problem> {
    match timeout(WAIT, permit).await {
        Ok(permit) => permit.map_err(|_| Problem::from(Error::Closed)),
        Err(_) => Err(Problem::busy()),
    }
}

/// A JSON object as a struct. What serde derives takes arrays for structs as well, field by field in an order that
/// nobody has promised.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Read<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, such as {\"name\": \"value\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}

/// Parses a JSON object. What goes wrong names the field; that costs a second parse, and only then.
pub(super) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    match serde_json::from_slice(json) {
        Ok(Object(parsed)) => Ok(parsed),
        Err(_) => Err(complaint::<Object<T>>(json)),
    }
}

fn complaint<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Problem {
    let mut parser = serde_json::Deserializer::from_slice(json);
    let result = serde_path_to_error::deserialize::<_, T>(&mut parser);
    match result {
        Err(error) => {
            let detail = error.inner().to_string();
            if matches!(error.inner().classify(), Category::Syntax | Category::Eof) {
                return Problem::malformed(None, format!("the body is not JSON: {detail}"));
            }
            let within = error.path().to_string();
            let within = Some(within).filter(|path| path != ".");
            // Where a field is missing there is no path to it, only to what it is missing in.
            let field = match (within, missing(&detail)) {
                (Some(within), Some(name)) => Some(format!("{within}.{name}")),
                (None, Some(name)) => Some(name.to_owned()),
                (within, None) => within,
            };
            Problem::malformed(field, detail)
        }
        Ok(_) => Problem::malformed(None, "something follows the JSON value: send one value"),
    }
}

/// The field that is missing, from what serde says.
fn missing(detail: &str) -> Option<&str> {
    let (name, _) = detail.strip_prefix("missing field `")?.split_once('`')?;
    Some(name)
}

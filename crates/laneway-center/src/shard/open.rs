//! The view of a shard: opened, and built again from the log where it does not belong to it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use laneway_cluster::apply::{Applied, Identity, Shard, Stop};
use laneway_cluster::record::{Record, Row, Unreadable};
use laneway_view::View;
use tokio::time::timeout;

use super::{Ending, restore};
use crate::log::{LogError, ShardLog};
use crate::rows::Rows;
use crate::shared::Shared;
use crate::stats::count;

/// Why there is no shard to work with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    View(#[from] laneway_view::Error),
    #[error("the log does not answer: {0}")]
    Log(#[from] LogError),
    #[error("the directory of the view: {0}")]
    Directory(#[from] std::io::Error),
    #[error(transparent)]
    Stop(#[from] Stop),
    #[error("it was interrupted")]
    Interrupted,
}

impl From<OpenError> for Ending {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::View(error) => Self::view(error),
            OpenError::Directory(_) => Self::view(error),
            OpenError::Stop(stop) => Self::Halted(stop),
            OpenError::Log(_) | OpenError::Interrupted => Self::OtherLog,
        }
    }
}

/// Which log it is.
pub(crate) fn identity(shared: &Shared, number: u32) -> Identity {
    Identity {
        cluster: shared.cluster.clone(),
        topic: shared.log.identity().to_owned(),
        shard: number,
        shards: shared.log.shards(),
    }
}

/// Where the view of a shard is.
pub(crate) fn directory(root: &Path, number: u32) -> PathBuf {
    root.join(format!("shard-{number}"))
}

/// The shard as its view has it, or as the log has it. `must_rebuild`: the view does not belong to the log.
pub(super) async fn open(
    shared: &Shared,
    number: u32,
    must_rebuild: bool,
) -> Result<Shard<Rows>, OpenError> {
    let identity = identity(shared, number);
    let place = directory(&shared.directory, number).join("view");
    restore::remove_unfinished(&place)?;
    if must_rebuild {
        set_aside(place.clone(), identity.clone()).await?;
    } else if let Some(resumed) = resume(place.clone(), identity.clone()).await? {
        return Ok(resumed);
    }
    if let Some(restored) = restore::restore(shared, number, &identity, &place).await? {
        return Ok(restored);
    }
    rebuild(shared, number, &identity, place).await
}

/// The view as it was committed; `None`: there is none, or its rows are not those of its head.
async fn resume(place: PathBuf, identity: Identity) -> Result<Option<Shard<Rows>>, OpenError> {
    blocking(move || {
        let (view, head) = View::open(&place, &identity)?;
        let Some(head) = head else {
            return Ok(None);
        };
        match Shard::resume(head, Rows::new(view)) {
            Ok(shard) if shard.head().stopped().is_none() => Ok(Some(shard)),
            Ok(shard) => {
                // What stopped it may be readable by now: it is built again.
                drop(shard);
                laneway_view::set_aside(&place, &"it stopped at a record")?;
                Ok(None)
            }
            Err(stop) => {
                laneway_view::set_aside(&place, &stop)?;
                Ok(None)
            }
        }
    })
    .await
}

async fn set_aside(place: PathBuf, identity: Identity) -> Result<(), OpenError> {
    blocking(move || {
        let (view, head) = View::open(&place, &identity)?;
        if head.is_some() {
            view.set_aside(&Stop::OtherRecord)?;
        }
        Ok(())
    })
    .await
}

pub(super) async fn empty(place: PathBuf, identity: Identity) -> Result<Shard<Rows>, OpenError> {
    blocking(move || {
        let (view, head) = View::open(&place, &identity)?;
        let view = if head.is_some() {
            view.set_aside(&"the log has to be read from another place")?;
            View::open(&place, &identity)?.0
        } else {
            view
        };
        Ok(Shard::new(identity, Rows::new(view)))
    })
    .await
}

pub(super) async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, OpenError> + Send + 'static,
) -> Result<R, OpenError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(OpenError::Interrupted))
}

/// A shard from what is left of the log.
async fn rebuild(
    shared: &Shared,
    number: u32,
    identity: &Identity,
    place: PathBuf,
) -> Result<Shard<Rows>, OpenError> {
    let within = shared.settings.ask_within;
    let bounds = asked(within, shared.log.bounds(number)).await?;
    if bounds.is_empty() {
        return empty(place, identity.clone()).await;
    }
    count(&shared.counters.rebuilds);
    tracing::info!(
        shard = number,
        from = bounds.start,
        to = bounds.end,
        "building a view from the log"
    );
    from_log(&*shared.log, number, identity, place, bounds, within).await
}

/// A shard from what is left of a log between these bounds, in a view that is made for it.
pub(crate) async fn from_log(
    log: &dyn ShardLog,
    number: u32,
    identity: &Identity,
    place: PathBuf,
    bounds: Range<u64>,
    within: Duration,
) -> Result<Shard<Rows>, OpenError> {
    if bounds.is_empty() {
        return empty(place, identity.clone()).await;
    }
    let reader = Reader {
        log,
        number,
        end: bounds.end,
        within,
    };
    let beginnings = reader.beginnings(bounds.start).await?;
    let Some(beginnings) = beginnings else {
        let mut built = empty(place, identity.clone()).await?;
        reader.apply(&mut built, bounds.start).await?;
        return Ok(built);
    };
    let mut stop = Stop::NoBeginning;
    for offset in beginnings {
        let mut built = empty(place.clone(), identity.clone()).await?;
        let Some(bytes) = asked(within, log.read(number, offset)).await? else {
            continue;
        };
        let begun = built.begin_at(offset, &bytes);
        if !matches!(begun, Ok(Applied::Fact { .. })) {
            continue;
        }
        match reader.apply(&mut built, offset + 1).await {
            Ok(()) if built.head().is_complete => return Ok(built),
            Ok(()) => {}
            Err(OpenError::Stop(found)) => stop = found,
            Err(error) => return Err(error),
        }
    }
    Err(stop.into())
}

pub(crate) async fn asked<R>(
    within: Duration,
    asking: impl Future<Output = Result<R, LogError>>,
) -> Result<R, LogError> {
    let answer = timeout(within, asking).await;
    answer.unwrap_or_else(|_| Err(LogError("no answer in time".to_owned())))
}

/// Reads a log up to an end that was asked for.
pub(super) struct Reader<'a> {
    pub(super) log: &'a dyn ShardLog,
    pub(super) number: u32,
    pub(super) end: u64,
    pub(super) within: Duration,
}

impl Reader<'_> {
    pub(super) async fn each(
        &self,
        from: u64,
        mut take: impl FnMut(u64, &Bytes) -> Result<bool, OpenError>,
    ) -> Result<(), OpenError> {
        if from >= self.end {
            return Ok(());
        }
        let mut follower = self.log.follow(self.number, from);
        loop {
            for (offset, bytes) in asked(self.within, follower.next()).await? {
                if offset >= self.end || !take(offset, &bytes)? || offset + 1 >= self.end {
                    return Ok(());
                }
            }
        }
    }

    /// The offsets of every `open` that some `close` names. `None`: the log was never trimmed.
    async fn beginnings(&self, from: u64) -> Result<Option<Vec<u64>>, OpenError> {
        let mut opens = Vec::new();
        let mut closed = Vec::new();
        let mut is_first = true;
        let mut is_whole = false;
        self.each(from, |offset, bytes| {
            let record = Record::decode(bytes);
            if matches!(record, Err(Unreadable::Foreign)) {
                return Ok(true);
            }
            if is_first {
                is_first = false;
                is_whole = match &record {
                    Ok(Record::Owner(owner)) => owner.epoch == 1 && owner.basis.read == 0,
                    Ok(Record::Fact(_)) => false,
                    // Applying it says what is wrong with it.
                    Err(_) => true,
                };
                if is_whole {
                    return Ok(false);
                }
            }
            if let Ok(Record::Fact(fact)) = record {
                match &fact.rows[..] {
                    [Row::Open(_)] => opens.push((offset, (fact.epoch, fact.sequence))),
                    [Row::Close(close)] => closed.push((close.epoch, close.sequence)),
                    _ => {}
                }
            }
            Ok(true)
        })
        .await?;
        if is_whole || is_first {
            return Ok(None);
        }
        let opens = opens.into_iter().filter(|(_, name)| closed.contains(name));
        Ok(Some(opens.map(|(offset, _)| offset).collect()))
    }

    /// Applies all records from an offset on.
    async fn apply(&self, shard: &mut Shard<Rows>, from: u64) -> Result<(), OpenError> {
        self.each(from, |offset, bytes| {
            shard.apply(offset, bytes)?;
            shard.table().take_changed();
            if shard.table().view.wants_commit() {
                shard.table().view.commit(shard.head())?;
            }
            Ok(true)
        })
        .await?;
        shard.table().view.commit(shard.head())?;
        Ok(())
    }
}

//! A shard as its log has it, for programs that are not a center.

use std::path::Path;
use std::time::Duration;

use laneway::log::Log;
use laneway_cluster::apply::{Identity, Shard};
use laneway_view::View;

use crate::log::ShardLog;
use crate::shard::{OpenError, asked, from_log};

/// How long the log may take for an answer.
const WITHIN: Duration = Duration::from_secs(30);

/// Why a shard could not be read.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard} cannot be read: {why}")]
pub struct ReadError {
    shard: u32,
    why: OpenError,
}

/// Reads a shard of a cluster into a view in a directory of its own, as far as its log goes now.
///
/// # Errors
/// When the log or the disk does not answer, or the log cannot be read.
pub async fn read_shard(
    log: &Log,
    cluster: &str,
    number: u32,
    directory: &Path,
) -> Result<Shard<View>, ReadError> {
    let read = async {
        let identity = Identity {
            cluster: cluster.to_owned(),
            topic: log.identity().to_owned(),
            shard: number,
            shards: log.partitions(),
        };
        let log: &dyn ShardLog = log;
        let bounds = asked(WITHIN, log.bounds(number)).await?;
        let place = directory.join(format!("shard-{number}"));
        let built = from_log(log, number, &identity, place, bounds, WITHIN).await?;
        built.table().view.commit(built.head())?;
        let head = built.head().clone();
        Ok(Shard::resume(head, built.into_table().view)?)
    };
    let why = |why| ReadError { shard: number, why };
    read.await.map_err(why)
}

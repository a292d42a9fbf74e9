//! The copies of owned shards in Redis: opened, counted, and told of where they are behind.

use std::time::Duration;

use anyhow::Context;
use laneway_backup::{Backup, RedisOptions};
use laneway_center::{BackupStats, Center};

use crate::config::Config;
use crate::config::secret::{without_secrets, without_secrets_of};

/// A copy that lacks something for less time is being written.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// A name, what it is, and its value.
type Figure = (&'static str, &'static str, u64);

/// The backup that is set. It does not have to answer: nothing rests on it.
pub(super) fn open(config: &Config) -> anyhow::Result<Option<Backup>> {
    let Some(address) = &config.serve.backup else {
        return Ok(None);
    };
    let opened = RedisOptions::new(address).and_then(Backup::open);
    let opened = opened.map_err(|error| {
        let said = without_secrets_of(address, &error.to_string());
        anyhow::anyhow!(said)
    });
    let opened = opened.with_context(|| {
        let shown = without_secrets(address);
        format!("cannot use the backup {shown} (serve.backup)")
    })?;
    Ok(Some(opened))
}

/// What people should know of the backup.
pub(super) fn doubts(center: Option<&Center>) -> Vec<String> {
    let stats = center.and_then(Center::backup_stats);
    stats.as_ref().and_then(doubt).into_iter().collect()
}

fn doubt(stats: &BackupStats) -> Option<String> {
    if stats.behind == 0 || stats.behind_for < TOLD_AFTER {
        return None;
    }
    let shards = if stats.behind == 1 { "shard" } else { "shards" };
    let why = match &stats.trouble {
        Some(trouble) => trouble.as_str(),
        None => "it is being filled",
    };
    Some(format!(
        "the backup lacks something of {} {shards}: {why}",
        stats.behind
    ))
}

/// What is counted of the backup, if there is one.
pub(super) fn figures(center: &Center, gauges: &mut Vec<Figure>, counters: &mut Vec<Figure>) {
    let Some(stats) = center.backup_stats() else {
        return;
    };
    gauges.extend([
        (
            "backup_behind",
            "Owned shards whose copies lack something",
            stats.behind,
        ),
        (
            "backup_waiting_bytes",
            "Bytes that wait to be written to the backup",
            stats.waiting_bytes,
        ),
    ]);
    counters.extend([
        ("backup_writes", "Writes to the backup", stats.writes),
        (
            "backup_failures",
            "Writes to the backup without an answer, or with an error",
            stats.failures,
        ),
        (
            "backup_refills",
            "Copies that were filled anew",
            stats.refills,
        ),
        (
            "backup_dropped",
            "Times that too much waited for the backup",
            stats.dropped,
        ),
        (
            "backup_refused",
            "Writes refused because a later owner has written",
            stats.refused,
        ),
    ]);
}

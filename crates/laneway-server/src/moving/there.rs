//! From a directory to a cluster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use laneway::Bus;
use laneway::log::Log;
use laneway_cluster::moving::{Arrival, alias};
use laneway_cluster::record::RequestDigest;
use laneway_cluster::shard_of;
use laneway_delay::StateName;
use laneway_delay::store::{DiskStore, LeavingKey, MoveNote, MoveStage, Store};
use serde_json::{Value, json};

use super::arrival::arrival;
use super::options::Move;
use super::progress::Progress;
use super::shard::{Looked, ShardMover, taken};
use crate::client::Failed;
use crate::cluster::{id_of_key, open_topics};
use crate::config::secret::{without_secrets, without_secrets_of};

/// How many messages are moved at a time, unless it is said.
const PAGE: usize = 4_096;

/// Shards that are read at the same time.
const READ_AT_ONCE: usize = 4;

/// Closing a bus that nothing reads.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// In this order. What waits comes first.
const STATES: [StateName; 4] = [
    StateName::Scheduled,
    StateName::Dead,
    StateName::Withdrawn,
    StateName::Delivered,
];

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// `counted`, `moved` or `aborted`.
    what: &'static str,
    to: String,
    /// How many messages there are, by [`STATES`].
    states: [u64; 4],
    keys: u64,
    /// How many were written now; the others were there.
    written: u64,
    seconds: f64,
}

impl Report {
    fn messages(&self) -> u64 {
        self.states.iter().sum()
    }

    pub(super) fn json(&self) -> Value {
        let [scheduled, dead, withdrawn, delivered] = self.states;
        json!({
            "what": self.what, "to": self.to, "messages": self.messages(), "scheduled": scheduled, "dead": dead,
            "withdrawn": withdrawn, "delivered": delivered, "keys": self.keys, "written": self.written,
            "seconds": self.seconds,
        })
    }

    pub(super) fn text(&self) -> String {
        let [scheduled, dead, withdrawn, delivered] = self.states;
        let of = format!(
            "{} messages ({scheduled} scheduled, {dead} dead, {withdrawn} withdrawn, {delivered} delivered) and {} \
             idempotency keys",
            self.messages(),
            self.keys
        );
        match self.what {
            "counted" => format!("{of} would be moved to {}\n", self.to),
            "aborted" => "the move is taken back: nothing was handed over, and the directory can be served again\n".to_owned(),
            _ => format!(
                "{of} are in the cluster at {}: {} were written in {:.1} s, the others were there\n\
                 serve them with `laneway serve --log`; the directory stays as it is, and is refused by `laneway serve`\n",
                self.to, self.written, self.seconds
            ),
        }
    }
}

/// A move.
struct Moving<'a> {
    options: &'a Move,
    store: DiskStore,
    shards: Vec<ShardMover>,
    /// What the fences are known by.
    mover: [u8; 6],
    report: Report,
}

pub(super) async fn run(options: &Move) -> anyhow::Result<Report> {
    let began = Instant::now();
    let data = options.from.strip_prefix("file:").unwrap_or(&options.from);
    let data = PathBuf::from(data);
    let directory = data.join("messages");
    if !directory.join("store").exists() {
        let detail = format!(
            "--from: there are no messages of a server in {}; give its data directory (serve.data_dir)",
            data.display()
        );
        return Err(Failed::usage(&detail).into());
    }
    let store = DiskStore::open_to_move(&directory).await;
    let store =
        store.with_context(|| format!("cannot open the messages in {}", directory.display()))?;
    let result = with_store(options, store, &data, &directory).await;
    let mut report = result?;
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

async fn with_store(
    options: &Move,
    store: DiskStore,
    data: &Path,
    directory: &Path,
) -> anyhow::Result<Report> {
    // Now that the directory is ours.
    let note = MoveNote::read(directory)?;
    let mut report = count(&store).await?;
    report.to = without_secrets(&options.to);
    if options.dry_run {
        report.what = "counted";
        store.close().await?;
        return Ok(report);
    }
    if options.abort && note.is_none() {
        let detail = "there is no move of this directory to take back".to_owned();
        return Err(Failed::of(4, "no_move", detail).into());
    }
    let bus = Bus::open(&options.to).await.map_err(|error| {
        let error = without_secrets_of(&options.to, &error.to_string());
        let detail = format!("cannot open {}: {error}", without_secrets(&options.to));
        Failed::of(5, "unreachable", detail)
    })?;
    let log = open_topics(&bus, options.shards).await?;
    let expected = MoveNote {
        stage: MoveStage::Begun,
        to: report.to.clone(),
        cluster: options.cluster.clone(),
        log: log.identity().to_owned(),
    };
    let stage = stage(note, &expected)?;
    if stage == Some(MoveStage::Moved) {
        report.what = "moved";
        store.close().await?;
        return Ok(report);
    }
    let views = data.join("moving");
    empty(&views)?;
    let shards = open_shards(&log, &options.cluster, &views).await?;
    let identity = store.identity().to_le_bytes();
    let mut mover = [0; 6];
    mover.copy_from_slice(&identity[..6]);
    let mut moving = Moving {
        options,
        store,
        shards,
        mover,
        report,
    };
    let done = moving.go(stage, &expected).await;
    let Moving {
        store,
        shards,
        report,
        ..
    } = moving;
    drop(shards);
    let _ = std::fs::remove_dir_all(&views);
    store.close().await?;
    let _ = tokio::time::timeout(CLOSE_WITHIN, bus.close(CLOSE_WITHIN)).await;
    done?;
    Ok(report)
}

/// How far an earlier run came, if it had the same aim.
fn stage(note: Option<MoveNote>, expected: &MoveNote) -> anyhow::Result<Option<MoveStage>> {
    let Some(note) = note else { return Ok(None) };
    if (&note.log, &note.cluster) != (&expected.log, &expected.cluster) {
        let detail = format!(
            "the messages of this directory are on their way to {} (cluster {}), and that is not {} (cluster {}), or its \
             topics were made anew: give the same --to and --cluster",
            note.to, note.cluster, expected.to, expected.cluster
        );
        return Err(Failed::of(4, "other_move", detail).into());
    }
    Ok(Some(note.stage))
}

async fn open_shards(log: &Log, cluster: &str, views: &Path) -> anyhow::Result<Vec<ShardMover>> {
    let opening = (0..log.partitions()).map(|number| ShardMover::open(log, cluster, number, views));
    stream::iter(opening)
        .buffered(READ_AT_ONCE)
        .try_collect()
        .await
}

fn empty(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot empty {}", directory.display()));
        }
        _ => {}
    }
    let made = std::fs::create_dir_all(directory);
    made.with_context(|| format!("cannot make {}", directory.display()))
}

async fn count(store: &DiskStore) -> anyhow::Result<Report> {
    let mut report = Report::default();
    for counts in store.counts().into_values() {
        let of = [
            counts.scheduled + counts.firing,
            counts.dead,
            counts.withdrawn,
            counts.delivered,
        ];
        for (sum, count) in report.states.iter_mut().zip(of) {
            *sum += count;
        }
    }
    let mut last: Option<LeavingKey> = None;
    loop {
        let keys = store.leaving_keys(last.as_ref(), PAGE).await?;
        report.keys += keys.len() as u64;
        last = match keys.into_iter().last() {
            Some(key) => Some(key),
            None => return Ok(report),
        };
    }
}

/// Why what was seen cannot be moved, if it cannot.
fn refuse(looked: &Looked) -> anyhow::Result<()> {
    if !looked.taken.is_empty() {
        return Err(taken(&looked.taken));
    }
    if let Some((id, size)) = looked.too_large.first() {
        anyhow::bail!(
            "message {id} has {size} bytes, which is more than the broker takes (its limit, less 64 KiB), and {} in all \
             are too large: raise the limit of the broker, or withdraw them",
            looked.too_large.len()
        );
    }
    Ok(())
}

impl Moving<'_> {
    /// IMPORTANT: in this order. The directory is noted before the first row is written, all rows are read back before it
    /// is noted that they are, and that is noted before the first fence goes.
    async fn go(&mut self, stage: Option<MoveStage>, note: &MoveNote) -> anyhow::Result<()> {
        if stage == Some(MoveStage::HandedOver) {
            if self.options.abort {
                return Err(too_late(self.report.messages()));
            }
            return self.finish(note).await;
        }
        if stage.is_none() {
            let mut fences = self.shards.iter().filter_map(ShardMover::fence);
            if fences.any(|mover| mover != self.mover) {
                let detail = "the cluster is fenced off by another `laneway move`, which is not finished: finish that \
                              one first, or move to another cluster";
                return Err(Failed::of(4, "other_move", detail.to_owned()).into());
            }
            // What cannot be moved is found while nothing is noted and no shard is closed.
            let looked = self.look().await?;
            refuse(&looked)?;
            self.store.note_move(Some(note))?;
        }
        let mover = self.mover;
        // One after the other: of two moves at once the one that has the first shard goes on, and the other has none.
        for shard in &mut self.shards {
            shard.close(mover).await?;
        }
        let looked = self.look().await?;
        if self.options.abort && looked.there > 0 {
            return Err(too_late(looked.there as u64));
        }
        let is_refused = !looked.taken.is_empty() || !looked.too_large.is_empty();
        if self.options.abort || (is_refused && looked.there == 0) {
            self.release().await?;
            self.store.note_move(None)?;
            self.report.what = "aborted";
        }
        if self.options.abort {
            return Ok(());
        }
        refuse(&looked)?;
        self.write().await?;
        self.store.note_move(Some(&MoveNote {
            stage: MoveStage::HandedOver,
            ..note.clone()
        }))?;
        self.finish(note).await
    }

    async fn finish(&mut self, note: &MoveNote) -> anyhow::Result<()> {
        self.release().await?;
        self.store.note_move(Some(&MoveNote {
            stage: MoveStage::Moved,
            ..note.clone()
        }))?;
        self.report.what = "moved";
        Ok(())
    }

    /// Takes the fences away that are still there.
    async fn release(&mut self) -> anyhow::Result<()> {
        let mover = self.mover;
        let fenced = self.shards.iter_mut();
        let fenced = fenced.filter(|shard| shard.fence() == Some(mover));
        try_join_all(fenced.map(|shard| shard.release(mover))).await?;
        Ok(())
    }

    fn progress(&self, what: &'static str) -> Progress {
        let total = self.report.messages() + self.report.keys;
        Progress::new(what, total, self.options.json, self.options.page.is_some())
    }

    /// What there is of all messages.
    async fn look(&mut self) -> anyhow::Result<Looked> {
        let mut progress = self.progress("looking");
        let mut source = Source::default();
        let mut all = Looked::default();
        while let Some(page) = source.next(&self.store, self.options.page).await? {
            let count = page.arrivals.len();
            for (shard, arrivals) in self.shards.iter().zip(self.by_shard(page.arrivals)) {
                let looked = shard.look(&arrivals)?;
                if page.are_keys {
                    continue;
                }
                all.there += looked.there;
                all.taken.extend(looked.taken);
                all.too_large.extend(looked.too_large);
            }
            progress.add(count);
        }
        progress.end();
        Ok(all)
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        let mut progress = self.progress("moving");
        let mut source = Source::default();
        while let Some(page) = source.next(&self.store, self.options.page).await? {
            let count = page.arrivals.len();
            let parts = self.by_shard(page.arrivals);
            let writing = self.shards.iter_mut().zip(parts);
            let writing = writing.filter(|(_, arrivals)| !arrivals.is_empty());
            let writing = writing.map(|(shard, arrivals)| shard.write(arrivals, page.are_keys));
            let written: usize = try_join_all(writing).await?.into_iter().sum();
            self.report.written += written as u64;
            progress.add(count);
        }
        progress.end();
        Ok(())
    }

    fn by_shard(&self, arrivals: Vec<Arrival>) -> Vec<Vec<Arrival>> {
        let count = self.shards.len();
        let shards = u32::try_from(count).unwrap_or(u32::MAX);
        let mut parts = vec![Vec::new(); count];
        for arrival in arrivals {
            let shard = shard_of(&arrival.id, shards);
            if let Some(part) = parts.get_mut(shard as usize) {
                part.push(arrival);
            }
        }
        parts
    }
}

/// Some of what is moved.
struct Page {
    arrivals: Vec<Arrival>,
    are_keys: bool,
}

/// All that is moved, page by page.
#[derive(Default)]
struct Source {
    /// Which of [`STATES`]; behind them there are keys.
    state: usize,
    after: Option<laneway_delay::store::DueKey>,
    key: Option<LeavingKey>,
}

impl Source {
    async fn next(&mut self, store: &DiskStore, page: Option<u32>) -> anyhow::Result<Option<Page>> {
        let limit = page.map_or(PAGE, |page| page as usize);
        while let Some(state) = STATES.get(self.state) {
            let (leaving, last) = store.leaving(*state, self.after, limit).await?;
            self.after = last;
            if last.is_none() {
                self.state += 1;
            }
            if !leaving.is_empty() {
                return Ok(Some(Page {
                    arrivals: leaving.into_iter().map(arrival).collect(),
                    are_keys: false,
                }));
            }
        }
        let keys = store.leaving_keys(self.key.as_ref(), limit).await?;
        let Some(last) = keys.last() else {
            return Ok(None);
        };
        self.key = Some(last.clone());
        let mut arrivals = Vec::with_capacity(keys.len());
        for used in keys {
            let id = id_of_key(&used.key)?;
            // The message of a key that was used in a cluster has that id itself.
            if id != used.id {
                let digest = RequestDigest::of_fingerprint(used.fingerprint);
                arrivals.push(alias(id, used.id, digest, used.at));
            }
        }
        Ok(Some(Page {
            arrivals,
            are_keys: true,
        }))
    }
}

fn too_late(count: u64) -> anyhow::Error {
    let detail = format!(
        "{count} messages are in the cluster already, and cannot be taken back: run `laneway move` without --abort to finish"
    );
    Failed::of(4, "too_late", detail).into()
}

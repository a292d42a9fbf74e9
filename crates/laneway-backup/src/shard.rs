//! The copy of one shard: what its owner notes is written by a task of its own, or filled anew.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use laneway_cluster::apply::{Head, Identity};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::backup::Backup;
use crate::buffer::{Buffer, Taken};
use crate::rows::{Changed, Rows};
use crate::script::{ANEW, Call, SEIZE, Said};

/// A copy to which nothing is written is looked at so often: it may be gone.
const CHECK: Duration = Duration::from_secs(1);

/// A copy is written so often at most: a write has the head in it, which is larger than a row.
const PACE: Duration = Duration::from_millis(100);

/// Waits between tries.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The wait after a refusal because of a later owner: this one will hear of it.
const REFUSED: Duration = Duration::from_secs(2);

/// Rows that are read at once for a copy that is filled.
const PAGE: usize = 256;

/// A call of the script takes about so much, so that others are not kept waiting.
const CALL: usize = 256 << 10;

/// The copy of a shard that this center owns. Dropped, it writes nothing more.
#[derive(Debug)]
pub struct ShardBackup {
    shared: Arc<Shared>,
    backup: Backup,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    buffer: Mutex<Buffer>,
    noted: Notify,
    wants_note: AtomicBool,
    is_whole: AtomicBool,
}

impl ShardBackup {
    pub(crate) fn start(backup: Backup, identity: Identity, rows: Rows) -> Self {
        let shared = Arc::new(Shared {
            buffer: Mutex::new(Buffer::new(backup.redis.options().buffer_bytes)),
            noted: Notify::new(),
            wants_note: AtomicBool::new(true),
            is_whole: AtomicBool::new(false),
        });
        let task = Task {
            backup: backup.clone(),
            shared: shared.clone(),
            identity,
            rows,
            at: None,
            refused: None,
        };
        let task = tokio::spawn(task.run());
        Self {
            shared,
            backup,
            task,
        }
    }

    /// Rows have changed, and the shard is at this head with them. Every change of the view has to be noted, in order. Waits for
    /// nothing, and takes bounded memory however long Redis is away.
    pub fn note(&self, changes: Vec<Changed>, head: &Head) {
        self.shared.wants_note.store(false, Relaxed);
        let is_kept = self.shared.buffer.lock().note(changes, head);
        if !is_kept {
            self.backup.counters.dropped.fetch_add(1, Relaxed);
            tracing::warn!(
                shard = head.identity.shard,
                "the backup of a shard is too far behind, it will be filled anew"
            );
        }
        self.shared.noted.notify_one();
    }

    /// A note is waited for, even one without changes.
    #[must_use]
    pub fn wants_note(&self) -> bool {
        self.shared.wants_note.load(Relaxed)
    }

    /// Whether the copy had all that was noted up to some head when it was last written or looked at.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.shared.is_whole.load(Relaxed)
    }

    /// About how many bytes wait to be written.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.shared.buffer.lock().bytes()
    }
}

impl Drop for ShardBackup {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    backup: Backup,
    shared: Arc<Shared>,
    identity: Identity,
    rows: Rows,
    /// Where the copy is; `None`: it has to be filled.
    at: Option<Place>,
    /// Since when writes are refused because a later owner has written.
    refused: Option<Instant>,
}

/// Where the copy is, and by whose hand.
#[derive(Clone, Debug)]
struct Place {
    epoch: u64,
    token: String,
    /// Counts the calls.
    part: u64,
}

/// Why the copy has to be filled anew.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("it is not where it was left")]
    Elsewhere,
    #[error("something of it is gone")]
    Lost,
    #[error("too much was to be written")]
    TooMuch,
    #[error("a later owner has written to it")]
    LaterOwner,
    #[error("the rows cannot be read")]
    Rows,
}

impl Task {
    async fn run(mut self) {
        loop {
            let done = match self.at.take() {
                Some(at) => self.go_on(at).await,
                None => self.fill().await,
            };
            match done {
                Ok(at) => {
                    self.at = Some(at);
                    self.refused = None;
                }
                Err(why) => {
                    if matches!(why, Broken::LaterOwner) {
                        self.refused.get_or_insert_with(Instant::now);
                    }
                    self.shared.is_whole.store(false, Relaxed);
                    tracing::info!(shard = self.identity.shard, %why, "filling the backup of a shard");
                    let wait = match why {
                        Broken::LaterOwner | Broken::Rows => REFUSED,
                        _ => WAITS.0,
                    };
                    sleep(wait).await;
                }
            }
        }
    }

    /// Waits for what is noted, and writes it.
    async fn go_on(&self, at: Place) -> Result<Place, Broken> {
        let _ = timeout(CHECK, self.shared.noted.notified()).await;
        let (changes, head) = self.take()?;
        let head = head.filter(|head| head.next.to_string() != at.token || !changes.is_empty());
        if head.is_some() {
            let at = self.write((changes, head), at).await?;
            sleep(PACE).await;
            return Ok(at);
        }
        let check = Call::new(&self.identity, at.epoch, &at.token, &at.token);
        self.send(&check).await?;
        Ok(at)
    }

    fn take(&self) -> Result<Taken, Broken> {
        let mut buffer = self.shared.buffer.lock();
        if buffer.is_dropping() {
            return Err(Broken::TooMuch);
        }
        Ok(buffer.take())
    }

    /// Writes changes in calls of a bounded size. With a head the copy is whole after the last one.
    async fn write(&self, taken: Taken, mut at: Place) -> Result<Place, Broken> {
        let (changes, head) = taken;
        at.epoch = head.as_ref().map_or(at.epoch, |head| head.epoch);
        let mut call = self.next(&mut at);
        for (id, row) in &changes {
            call.change(id, row.as_deref());
            if call.bytes() >= CALL {
                self.send(&call).await?;
                at.token.clone_from(&call.to);
                call = self.next(&mut at);
            }
        }
        if let Some(head) = &head {
            call.whole(head);
            call.to = head.next.to_string();
        } else if call.bytes() == 0 {
            return Ok(at);
        }
        self.send(&call).await?;
        self.shared.is_whole.store(head.is_some(), Relaxed);
        at.token = call.to;
        Ok(at)
    }

    /// A call that leads to a place in the middle, which no other call leads to.
    fn next(&self, at: &mut Place) -> Call {
        at.part += 1;
        let name = at.token.split('.').next().unwrap_or_default();
        let to = format!("{name}.{}", at.part);
        Call::new(&self.identity, at.epoch, &at.token, &to)
    }

    /// Fills the copy from the rows as they are, under a name of its own, while more is noted. It is whole when all that was noted up
    /// to some head behind the last page is written, too.
    async fn fill(&self) -> Result<Place, Broken> {
        let epoch = loop {
            if let Some(epoch) = self.shared.buffer.lock().epoch() {
                break epoch;
            }
            let _ = timeout(CHECK, self.shared.noted.notified()).await;
        };
        self.shared.buffer.lock().drop_all();
        let _turn = self.backup.fills.acquire().await;
        let generation: u64 = rand::random();
        let mut at = Place {
            epoch,
            token: format!("fill-{generation:016x}"),
            part: 0,
        };
        let patience = self.backup.redis.options().seize_after;
        let is_over = self
            .refused
            .is_some_and(|since| since.elapsed() >= patience);
        let from = if is_over { SEIZE } else { ANEW };
        let anew = Call::new(&self.identity, epoch, from, &at.token);
        self.send(&anew).await?;
        // Before the first row is read: what changes from here on is either in a page or noted behind it.
        self.shared.buffer.lock().keep();
        let mut after = None;
        loop {
            let page = self.rows.page(after, PAGE).await.ok_or(Broken::Rows)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let page = page.into_iter().map(|(id, row)| (id, Some(row)));
            at = self.write((page.collect(), None), at).await?;
            let (changes, _) = self.take()?;
            at = self.write((changes, None), at).await?;
        }
        self.note_behind().await;
        let taken = self.take()?;
        let at = self.write(taken, at).await?;
        self.backup.counters.refills.fetch_add(1, Relaxed);
        Ok(at)
    }

    /// Waits for a note: all that is in the pages was noted by then.
    async fn note_behind(&self) {
        let before = self.shared.buffer.lock().notes();
        loop {
            self.shared.wants_note.store(true, Relaxed);
            let _ = timeout(CHECK, self.shared.noted.notified()).await;
            if self.shared.buffer.lock().notes() > before {
                return;
            }
        }
    }

    /// Sends a call until there is an answer. The script knows one that it was sent before.
    async fn send(&self, call: &Call) -> Result<(), Broken> {
        let counters = &self.backup.counters;
        let mut wait = WAITS.0;
        loop {
            let answer = self.backup.redis.run(call).await;
            match answer.and_then(|answer| call.said(&answer)) {
                Ok(said) => {
                    self.backup.answered();
                    return match said {
                        Said::Done => {
                            counters.writes.fetch_add(1, Relaxed);
                            Ok(())
                        }
                        Said::Elsewhere => Err(Broken::Elsewhere),
                        Said::Lost => Err(Broken::Lost),
                        Said::LaterOwner => {
                            counters.refused.fetch_add(1, Relaxed);
                            Err(Broken::LaterOwner)
                        }
                    };
                }
                Err(error) => {
                    self.backup.failed(&error);
                    self.shared.is_whole.store(false, Relaxed);
                    tracing::debug!(shard = self.identity.shard, %error, "the backup of a shard cannot be written");
                }
            }
            if !call.is_anew() && self.shared.buffer.lock().is_dropping() {
                return Err(Broken::TooMuch);
            }
            sleep(wait.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            wait = (wait * 2).min(WAITS.1);
        }
    }
}

//! One shard of the cluster: its fence, and messages into its log.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use laneway::log::{Follower, Log};
use laneway_center::read_shard;
use laneway_cluster::apply::{Shard, Table, Void};
use laneway_cluster::moving::{Arrival, Step, next_step};
use laneway_cluster::record::{Fact, Owner, Pack, Record, Reign, Row};
use laneway_delay::MessageId;
use laneway_view::View;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Failed;

/// How long the log may be silent before the move gives up.
const SILENT: Duration = Duration::from_mins(1);

/// How long to wait for what was appended before it is appended again.
const AGAIN: Duration = Duration::from_secs(5);

/// How many facts are appended at once. They name the same offset, which must not be too far behind them.
const AT_ONCE: usize = 16;

/// How often it announces itself.
const TRIES: usize = 50;

/// What a record has to have room for beside the content of a message: its history, and what is answered later.
const ROOM: usize = 64 << 10;

/// A shard that messages are moved into.
pub(super) struct ShardMover {
    log: Log,
    number: u32,
    shard: Shard<View>,
    follower: Follower,
}

/// What there is of some messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked {
    /// How many are there.
    pub(super) there: usize,
    /// Those whose ids other messages have.
    pub(super) taken: Vec<MessageId>,
    /// Those that the log cannot keep, with their sizes.
    pub(super) too_large: Vec<(MessageId, usize)>,
}

impl ShardMover {
    /// Reads the shard.
    pub(super) async fn open(
        log: &Log,
        cluster: &str,
        number: u32,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let shard = read_shard(log, cluster, number, directory).await?;
        let bounds = log.bounds(number).await.map_err(|error| away(&error))?;
        let follower = log.follow(number, shard.head().next.max(bounds.start));
        Ok(Self {
            log: log.clone(),
            number,
            shard,
            follower,
        })
    }

    /// What is moved into the shard, if it is fenced off.
    pub(super) fn fence(&self) -> Option<[u8; 6]> {
        self.shard.head().reign.mover()
    }

    /// Fences the shard off. Whatever others have sent is void from here on.
    pub(super) async fn close(&mut self, mover: [u8; 6]) -> anyhow::Result<()> {
        self.announce(|| Reign::fence(mover, rand::random()), Some(mover))
            .await
    }

    /// Takes the fence away.
    pub(super) async fn release(&mut self, mover: [u8; 6]) -> anyhow::Result<()> {
        self.announce(|| Reign(rand::random()), Some(mover)).await
    }

    async fn announce(
        &mut self,
        draw: impl Fn() -> Reign,
        mover: Option<[u8; 6]>,
    ) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            self.catch_up().await?;
            let other = self.fence().filter(|found| Some(*found) != mover);
            if other.is_some() {
                return Err(other_move(self.number));
            }
            let head = self.shard.head();
            let (epoch, reign) = (head.epoch.saturating_add(1), draw());
            let owner = Owner {
                epoch,
                reign,
                basis: head.basis(),
            };
            let bytes = Record::Owner(owner).encode();
            // What is not known to be there is found out by reading.
            let appended = self.log.append(self.number, vec![bytes]).await;
            let began = Instant::now();
            while self.shard.head().epoch < epoch && began.elapsed() < AGAIN {
                self.read(AGAIN).await?;
            }
            let head = self.shard.head();
            if (head.epoch, head.reign) == (epoch, reign) {
                return Ok(());
            }
            if let Err(error) = appended {
                tracing::warn!(shard = self.number, %error, "a shard could not be announced, trying again");
                sleep(Duration::from_millis(200)).await;
            }
        }
        Err(Failed::of(
            6,
            "contended",
            format!(
                "shard {} is taken by others again and again: stop the centers of the cluster, and run it again",
                self.number
            ),
        )
        .into())
    }

    /// Reads to the end of the log.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        let bounds = self.log.bounds(self.number).await;
        let bounds = bounds.map_err(|error| away(&error))?;
        let began = Instant::now();
        while !bounds.is_empty() && self.shard.head().next < bounds.end {
            if self.read(AGAIN).await? {
                continue;
            }
            if began.elapsed() > SILENT {
                return Err(away(&"its log is not read to the end"));
            }
        }
        Ok(())
    }

    /// Applies the next records, if any come in time; answers whether some did.
    async fn read(&mut self, within: Duration) -> anyhow::Result<bool> {
        let Ok(records) = timeout(within, self.follower.next()).await else {
            return Ok(false);
        };
        let records = match records {
            Ok(records) => records,
            Err(error @ laneway::log::Error::Fault(_)) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "a log does not answer, trying again");
                sleep(Duration::from_millis(200)).await;
                return Ok(false);
            }
        };
        for (offset, bytes) in records {
            let applied = self.shard.apply(offset, &bytes)?;
            if applied == laneway_cluster::apply::Applied::Void(Void::OtherBasis) {
                tracing::warn!(
                    shard = self.number,
                    offset,
                    "a record was written on another basis"
                );
            }
            self.check_view()?;
        }
        let view = self.shard.table();
        if view.wants_commit() {
            view.commit(self.shard.head())?;
        }
        Ok(true)
    }

    fn check_view(&self) -> anyhow::Result<()> {
        match self.shard.table().failure() {
            Some(failure) => Err(anyhow::anyhow!("shard {}: {failure}", self.number)),
            None => Ok(()),
        }
    }

    /// What there is of messages.
    pub(super) fn look(&self, arrivals: &[Arrival]) -> anyhow::Result<Looked> {
        let mut looked = Looked::default();
        let most = self.log.largest().saturating_sub(ROOM);
        for arrival in arrivals {
            let size = arrival.image.body.len();
            match next_step(self.shard.table().get(&arrival.id).as_deref(), arrival) {
                Step::There => looked.there += 1,
                Step::Taken => looked.taken.push(arrival.id.clone()),
                Step::Write(_) if size > most => {
                    looked.too_large.push((arrival.id.clone(), size));
                }
                Step::Write(_) => {}
            }
        }
        self.check_view()?;
        Ok(looked)
    }

    /// Writes messages into the log, but for those that are there; answers how many were not. `may_be_taken`: ids that others
    /// have are left alone.
    pub(super) async fn write(
        &mut self,
        arrivals: Vec<Arrival>,
        may_be_taken: bool,
    ) -> anyhow::Result<usize> {
        let mut left = arrivals;
        let mut written = None;
        // Two rows at most, and one more round if a record of an earlier run came late.
        for _ in 0..5 {
            let (mut rows, mut unfinished) = (Vec::new(), Vec::new());
            for arrival in left {
                match next_step(self.shard.table().get(&arrival.id).as_deref(), &arrival) {
                    Step::There => {}
                    Step::Taken if may_be_taken => {}
                    Step::Taken => return Err(taken(&[arrival.id])),
                    Step::Write(row) => {
                        rows.push(row);
                        unfinished.push(arrival);
                    }
                }
            }
            self.check_view()?;
            let written = *written.get_or_insert(unfinished.len());
            if unfinished.is_empty() {
                return Ok(written);
            }
            self.log_rows(rows).await?;
            left = unfinished;
        }
        anyhow::bail!(
            "shard {}: rows that were written do not count: run it again",
            self.number
        )
    }

    /// Puts rows into facts, appends these, and reads them back.
    async fn log_rows(&mut self, rows: Vec<Row>) -> anyhow::Result<()> {
        let mut packs = Vec::new();
        let mut pack = Pack::default();
        for row in rows {
            if let Err(row) = pack.push(row) {
                packs.push(std::mem::take(&mut pack).into_rows());
                // An empty one takes any row.
                let _ = pack.push(row);
            }
        }
        packs.push(pack.into_rows());
        let mut packs = packs.into_iter().peekable();
        while packs.peek().is_some() {
            let head = self.shard.head();
            let (epoch, reign, basis) = (head.epoch, head.reign, head.basis());
            let before = head.sequence;
            let facts: Vec<Bytes> = packs
                .by_ref()
                .take(AT_ONCE)
                .zip(before + 1..)
                .map(|(rows, sequence)| {
                    let fact = Fact {
                        epoch,
                        reign,
                        sequence,
                        basis,
                        rows,
                    };
                    Record::Fact(fact).encode()
                })
                .collect();
            self.log_facts((epoch, reign), before, &facts).await?;
        }
        Ok(())
    }

    /// Appends facts, the same bytes again as long as they are not read back.
    async fn log_facts(
        &mut self,
        own: (u64, Reign),
        before: u64,
        facts: &[Bytes],
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let appended = self.log.append(self.number, facts.to_vec()).await;
            if let Err(error @ laneway::log::Error::TooLarge { .. }) = appended {
                return Err(error.into());
            }
            let sent = Instant::now();
            while sent.elapsed() < AGAIN {
                let head = self.shard.head();
                if (head.epoch, head.reign) != own {
                    return Err(other_move(self.number));
                }
                if head.sequence >= before + facts.len() as u64 {
                    return Ok(());
                }
                self.read(AGAIN).await?;
            }
            if began.elapsed() > SILENT {
                let why = match appended {
                    Err(error) => error.to_string(),
                    Ok(_) => "what was appended does not come back".to_owned(),
                };
                return Err(away(&why));
            }
        }
    }
}

/// The broker is away.
fn away(why: &dyn std::fmt::Display) -> anyhow::Error {
    let detail =
        format!("the broker does not answer ({why}): run it again, it goes on where it was");
    Failed::of(5, "unreachable", detail).into()
}

fn other_move(shard: u32) -> anyhow::Error {
    let detail = format!(
        "shard {shard} of the cluster is fenced off by another `laneway move`, which is not finished: finish that one first"
    );
    Failed::of(4, "other_move", detail).into()
}

/// Ids that other messages have.
pub(super) fn taken(ids: &[MessageId]) -> anyhow::Error {
    let some: Vec<&str> = ids.iter().take(5).map(MessageId::as_str).collect();
    let detail = format!(
        "the cluster has other messages with the ids of {} of these, and nothing was moved: {}{}; end those of one side \
         (`laneway delay withdraw`) and wait until they are forgotten, or move to another cluster",
        ids.len(),
        some.join(", "),
        if ids.len() > some.len() { ", …" } else { "" }
    );
    Failed::of(4, "id_taken", detail).into()
}

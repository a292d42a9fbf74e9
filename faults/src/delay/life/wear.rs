//! What time does: things are forgotten, clocks are wrong when a process starts, bits flip.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway_delay::clock::Clock;
use laneway_delay::store::{DiskStore, Store};
use laneway_delay::{MessageId, State, Timestamp, When};
use rand::RngExt;

use super::disk::flip_any;
use super::judge::agrees;
use super::world::{Life, PATIENCE, SIZES, World};

/// For how long a forgetful process keeps what has ended.
const KEEP: Duration = Duration::from_hours(1);

/// How long anything may take of which nothing is known.
const LIMIT: Duration = Duration::from_mins(1);

impl World {
    /// A process that keeps little: what was delivered or withdrawn long ago is forgotten, with the keys, and the dead stay.
    pub(super) async fn forget(&mut self) -> Result<()> {
        for _ in 0..3 {
            self.clock.pass(7_200_000);
            self.quiet().await;
        }
        let closed = self.delays.close(PATIENCE).await;
        ensure!(closed.is_ok(), "it does not close: {closed:?}");
        self.start_anew();
        let opened = Self::open_forgetful(
            &self.directory,
            &self.disk,
            &self.clock,
            &self.witness,
            KEEP,
        );
        self.delays = opened.await.context("it does not open")?;
        self.lives += 1;
        self.quiet().await;
        // Whatever was delivered until now was right, and from here on none of these may be.
        self.judge_deliveries();
        let firm_from = self.judged;
        let now = self.clock.now();
        let deadline = Instant::now() + PATIENCE;
        for id in self.ended_before(now).await {
            loop {
                let found = self.delays.get(&Self::id(&id)).await;
                if matches!(found, Err(laneway_delay::Error::NotFound(_))) {
                    break;
                }
                if Instant::now() > deadline {
                    self.fail(format!("{id} is not forgotten: {found:?}"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if let Some(kept) = self.model.get_mut(&id) {
                kept.life = Life::Gone;
                kept.firm_from = firm_from;
            }
            self.forgotten += 1;
        }
        self.keys.clear();
        // It is durable only once it is closed.
        self.reopen().await
    }

    /// Those that were delivered or withdrawn so long ago that they may be forgotten. Some are gone already.
    async fn ended_before(&self, now: Timestamp) -> Vec<String> {
        let mut ended = Vec::new();
        for (id, kept) in &self.model {
            if !matches!(kept.life, Life::Ended | Life::Withdrawn) {
                continue;
            }
            let Ok(message) = self.delays.get(&Self::id(id)).await else {
                ended.push(id.clone());
                continue;
            };
            if let State::Delivered { at } | State::Withdrawn { at } = message.record.state()
                && at + KEEP < now
            {
                ended.push(id.clone());
            }
        }
        ended
    }

    /// The clock is set ahead, and the process started anew before it is put right: no delay is cut short.
    pub(super) async fn restart_ahead(&mut self) -> Result<()> {
        // Whatever was wrong with the clock before is over.
        self.clock.pass(3 * 3_600_000);
        self.quiet().await;
        self.clock.pass(1);
        let minutes = self.dice.random_range(2..20);
        let delay = When::After(Duration::from_mins(minutes));
        let (id, is_taken) = self.submit_one(delay).await;
        ensure!(is_taken, "it was not taken");
        let ahead = self.dice.random_range(30..58) * 60_000;
        self.clock.step(ahead);
        self.reopen().await?;
        self.clock.pass(minutes * 30_000);
        self.quiet().await;
        if self.witness.since(0).iter().any(|seen| seen.id == id) {
            self.fail(format!("{id} was delivered after half of its delay"));
        }
        self.clock.step(-ahead);
        self.clock.pass(minutes * 60_000);
        self.quiet().await;
        Ok(())
    }

    /// Any bit of a closed store flips: that is told, or makes no difference. Nothing is missing or different in silence.
    pub(super) async fn flip_any(&mut self) -> Result<()> {
        self.quiet().await;
        let closed = self.delays.close(PATIENCE).await;
        ensure!(closed.is_ok(), "it does not close: {closed:?}");
        let copy = self.folder.path().join("flipped");
        self.disk.copy(&self.directory, &copy, None)?;
        if let Some((path, at)) = flip_any(&copy, &mut self.dice)? {
            self.flipped += 1;
            let what = format!("a flipped bit at {at} of {}", path.display());
            let opening = DiskStore::open_on(&copy, Box::new(self.disk.clone()), SIZES);
            let opened = tokio::time::timeout(LIMIT, opening).await;
            let opened = opened.with_context(|| format!("{what}: it does not come to an end"))?;
            if let Ok(store) = opened {
                self.judge_damaged(&store, &what).await;
                let _ = tokio::time::timeout(LIMIT, store.close()).await;
            }
        }
        std::fs::remove_dir_all(&copy)?;
        self.resume().await
    }

    async fn judge_damaged(&mut self, store: &DiskStore, what: &str) {
        let seen = self.seen_tags();
        let mut wrong = Vec::new();
        for (id, kept) in &self.model {
            let Ok(id) = MessageId::new(id.clone()) else {
                continue;
            };
            // What cannot be read is told.
            if let Ok(message) = store.get(&id).await
                && !agrees(kept, message.as_ref(), &seen)
            {
                let state = message.map(|message| message.record.state());
                let life = kept.life;
                wrong.push(format!(
                    "{what}: {id} is {life:?} by the model, and {state:?}"
                ));
            }
        }
        self.wrong.extend(wrong);
    }
}

//! What goes wrong.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway_delay::clock::Clock;
use laneway_delay::{Error, When};
use rand::RngExt;

use super::disk::{Tail, flip};
use super::world::{Life, PATIENCE, World};

/// How long a process may go on before it is judged that something does not happen.
const WHILE: Duration = Duration::from_millis(40);

const HOUR: i64 = 3_600_000;

impl World {
    /// An orderly end, and a new beginning.
    pub(super) async fn reopen(&mut self) -> Result<()> {
        let closed = self.delays.close(PATIENCE).await;
        if let Err(error) = closed {
            self.fail(format!("it does not close: {error}"));
        }
        self.resume().await
    }

    /// A process ends, and another one begins.
    pub(super) fn start_anew(&mut self) {
        self.witness.die();
        self.witness = self.witness.next();
        self.clock.restart();
    }

    /// Opens what is there, and judges it.
    pub(super) async fn resume(&mut self) -> Result<()> {
        self.start_anew();
        let opened = Self::open(&self.directory, &self.disk, &self.clock, &self.witness).await;
        self.delays = opened.context("it does not open")?;
        self.lives += 1;
        self.quiet().await;
        self.judge_deliveries();
        self.judge_store().await;
        Ok(())
    }

    /// The process is killed, or the power of its machine is cut.
    pub(super) async fn kill(&mut self, without_power: bool) -> Result<()> {
        if self.dice.random_bool(0.5) {
            // In the middle of deliveries.
            self.clock.pass(self.dice.random_range(0..3_000));
            tokio::time::sleep(Duration::from_millis(self.dice.random_range(0..5))).await;
        }
        self.die(without_power).await?;
        self.resume().await
    }

    /// What is on the disk now is all that is left.
    async fn die(&mut self, without_power: bool) -> Result<()> {
        self.witness.die();
        self.cuts += u64::from(without_power);
        let to = self.folder.path().join(self.lives.to_string());
        // The engine may move files meanwhile: then the copy is none of any moment.
        for attempt in 0.. {
            ensure!(attempt < 100, "the files never rest");
            let before = files(&self.directory)?;
            let tail = without_power.then(|| Tail::draw(&mut self.dice));
            self.disk.copy(&self.directory, &to, tail)?;
            if files(&self.directory)? == before {
                break;
            }
            std::fs::remove_dir_all(&to)?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Whatever comes of the old one.
        let _ = self.delays.close(Duration::from_secs(2)).await;
        let _ = std::fs::remove_dir_all(&self.directory);
        self.directory = to;
        Ok(())
    }

    /// The clock goes back by an hour, a delay is counted, and the clock is put right.
    pub(super) async fn glitch(&mut self) -> Result<()> {
        self.clock.step(-HOUR);
        self.quiet().await;
        let minutes = self.dice.random_range(2..30);
        let (id, is_taken) = self
            .submit_one(When::After(Duration::from_mins(minutes)))
            .await;
        ensure!(is_taken, "it was not taken");
        self.clock.step(HOUR);
        self.clock.pass(minutes * 30_000);
        tokio::time::sleep(WHILE).await;
        self.quiet().await;
        if self.witness.since(0).iter().any(|seen| seen.id == id) {
            self.fail(format!("{id} was delivered after half of its delay"));
        }
        self.clock.pass(2 * 3_600_000);
        self.quiet().await;
        Ok(())
    }

    /// Messages that become due while nothing can be noted.
    async fn submit_tempting(&mut self) {
        for _ in 0..4 {
            let soon = When::At(self.clock.now() + Duration::from_secs(2));
            self.submit_one(soon).await;
        }
    }

    /// Nothing is delivered while it cannot be noted.
    async fn expect_silence(&mut self) {
        let before = self.witness.len();
        self.clock.pass(5_000);
        tokio::time::sleep(WHILE).await;
        let after = self.witness.len();
        if after > before {
            self.fail(format!(
                "{} were delivered that cannot be noted",
                after - before
            ));
        }
    }

    /// A sync fails: nothing happens until the process is started again.
    pub(super) async fn failed_sync(&mut self) -> Result<()> {
        self.quiet().await;
        self.submit_tempting().await;
        self.disk.fails.store(true, Ordering::SeqCst);
        let when = When::At(self.clock.now());
        let (id, is_taken) = self.submit_one(when).await;
        if is_taken {
            self.fail(format!("{id} was taken by a disk that fails"));
        }
        self.expect_silence().await;
        let health = self.delays.report();
        if health.is_live() || health.is_ready() {
            self.fail("a store that has failed says that it is well");
        }
        self.die(true).await?;
        self.disk.fails.store(false, Ordering::SeqCst);
        self.resume().await
    }

    /// Writing fails, and works again: it goes on by itself.
    pub(super) async fn no_descriptor(&mut self) -> Result<()> {
        self.quiet().await;
        self.submit_tempting().await;
        self.disk.refuses.store(true, Ordering::SeqCst);
        let when = When::At(self.clock.now());
        let (id, is_taken) = self.submit_one(when).await;
        if is_taken {
            self.fail(format!("{id} was taken by a disk that takes nothing"));
        }
        self.expect_silence().await;
        if self.delays.report().is_ready() {
            self.fail("a store that cannot write says that it is well");
        }
        self.disk.refuses.store(false, Ordering::SeqCst);
        self.expect_room(when).await;
        self.quiet().await;
        self.judge_store().await;
        Ok(())
    }

    /// Messages are taken again, by itself.
    async fn expect_room(&mut self, when: When) {
        let deadline = Instant::now() + PATIENCE;
        while !self.submit_one(when).await.1 {
            if Instant::now() > deadline {
                self.fail("it does not go on when it could");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The disk is full: nothing new is taken, and taking back works.
    pub(super) async fn full_disk(&mut self) -> Result<()> {
        self.disk.is_full.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        let when = When::At(self.clock.now() + Duration::from_secs(30));
        let mut last = None;
        while last.is_none() {
            ensure!(Instant::now() < deadline, "it is not noticed");
            let tag = u64::MAX - 7;
            let submission = self.submission("full", tag, when);
            match self.delays.submit_one(submission).await {
                Err(error @ Error::DiskFull { .. }) => last = Some(error),
                Err(error) => {
                    self.fail(format!("a full disk: {error}"));
                    break;
                }
                Ok(_) => {
                    let taken = self.delays.withdraw(&Self::id("full")).await;
                    let purged = self.delays.purge(&Self::id("full")).await;
                    ensure!(taken.is_ok() && purged.is_ok(), "it is not taken back");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        self.withdraw().await;
        self.disk.is_full.store(false, Ordering::SeqCst);
        self.expect_room(when).await;
        Ok(())
    }

    /// A bit of a file flips: what is in that block cannot be read, and everything else is delivered.
    pub(super) async fn flipped_bit(&mut self) -> Result<()> {
        self.quiet().await;
        // More than fits into memory, so that there are files.
        for _ in 0..40 {
            let when = When::At(self.clock.now() + Duration::from_mins(50));
            self.submit_one(when).await;
        }
        let closed = self.delays.close(PATIENCE).await;
        if let Err(error) = closed {
            self.fail(format!("it does not close: {error}"));
        }
        // What is lost with the block is not lost for the rest of this life.
        let copy = self.folder.path().join("damaged");
        self.disk.copy(&self.directory, &copy, None)?;
        flip(&copy)?;
        self.start_anew();
        // A table whose index cannot be read is told of when it is opened.
        if let Ok(delays) = Self::open(&copy, &self.disk, &self.clock, &self.witness).await {
            self.delays = delays;
            self.clock.pass(3_001_000);
            let deadline = Instant::now() + PATIENCE;
            loop {
                let left = self.unseen();
                let health = self.delays.report();
                // While the engine merges the table the store may be away for a moment.
                if left as u64 <= health.unreadable && health.is_ready() {
                    break;
                }
                if Instant::now() > deadline {
                    self.fail(format!("{left} are not delivered, and {health}"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                // A bus that was away is asked again after a while, by this clock.
                self.clock.pass(20);
            }
            let closed = self.delays.close(PATIENCE).await;
            if let Err(error) = closed {
                self.fail(format!("it does not close with a damaged block: {error}"));
            }
        }
        std::fs::remove_dir_all(&copy)?;
        self.resume().await
    }

    /// How many of those that are due were never seen.
    fn unseen(&self) -> usize {
        let now = self.clock.now();
        let seen: std::collections::HashSet<u64> =
            self.witness.since(0).iter().map(|seen| seen.tag).collect();
        self.model
            .values()
            .filter(|kept| kept.life == Life::Waiting && kept.due <= now)
            .filter(|kept| !seen.contains(&kept.tag))
            .count()
    }
}

/// All files, with their sizes.
fn files(directory: &std::path::Path) -> Result<Vec<(std::path::PathBuf, u64)>> {
    let mut folders = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                files.push((entry.path(), metadata.len()));
            }
        }
    }
    files.sort();
    Ok(files)
}

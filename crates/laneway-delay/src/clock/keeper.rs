//! Writes what is known of the clock on a thread of its own: a disk that hangs must not hold up those who ask what time it
//! is.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::timeout;

use super::kept::Kept;
use super::steady::Anchor;

/// Hands anchors to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    shared: Arc<Shared>,
    /// How many of the anchors that were handed over are written, or cannot be.
    written: watch::Receiver<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    /// IMPORTANT: never held during a write.
    slot: Mutex<Slot>,
    is_filled: Condvar,
}

#[derive(Debug, Default)]
struct Slot {
    /// The latest one. Those before it do not matter any more.
    anchor: Option<Anchor>,
    handed: u64,
    is_closed: bool,
}

impl Shared {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    /// Waits for the next anchor, and which one it is. `None`: there will be none.
    fn next(&self) -> Option<(Anchor, u64)> {
        let mut slot = self.slot();
        let wait = |slot: &mut Slot| slot.anchor.is_none() && !slot.is_closed;
        self.is_filled.wait_while(&mut slot, wait);
        Some((slot.anchor.take()?, slot.handed))
    }
}

impl Keeper {
    pub(super) fn start(kept: Kept) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (done, written) = watch::channel(0);
        let working = shared.clone();
        thread::Builder::new()
            .name("laneway-clock".to_owned())
            .spawn(move || {
                while let Some((anchor, number)) = working.next() {
                    kept.write(anchor);
                    done.send_replace(number);
                }
            })?;
        Ok(Self { shared, written })
    }

    /// Returns at once.
    pub(super) fn keep(&self, anchor: Anchor) {
        let mut slot = self.shared.slot();
        slot.anchor = Some(anchor);
        slot.handed += 1;
        self.shared.is_filled.notify_one();
    }

    /// Resolves when everything is written that was handed over before, or cannot be, or that takes longer than this.
    pub(super) async fn wait(&self, most: Duration) {
        let handed = self.shared.slot().handed;
        let mut written = self.written.clone();
        let _ = timeout(most, written.wait_for(|written| *written >= handed)).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.slot().is_closed = true;
        self.shared.is_filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use std::process::Command;
    use std::sync::mpsc;

    /// A pipe that has no reader: opening it for writing takes for ever.
    fn stuck(folder: &std::path::Path) -> std::path::PathBuf {
        let pipe = folder.join("clock.new");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        pipe
    }

    #[test]
    fn a_disk_that_hangs_does_not_stop_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = stuck(folder.path());
        let clock = SystemClock::kept_in(folder.path(), Duration::from_secs(1));
        let (told, times) = mpsc::channel();
        let asking = thread::spawn(move || {
            for _ in 0..3 {
                told.send(clock.now()).unwrap();
            }
        });
        for _ in 0..3 {
            let time = times.recv_timeout(Duration::from_secs(30));
            time.expect("the clock tells the time");
        }
        asking.join().unwrap();
        // Lets the thread go.
        drop(std::fs::File::open(pipe));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_waited_for_until_it_is_written_or_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let clock = SystemClock::kept_in(folder.path(), Duration::from_secs(1));
        clock.now();
        // Time stands still here, so the wait has no limit.
        let keeper = clock.keeper.as_ref().expect("a run of the machine");
        let handed = keeper.shared.slot().handed;
        let mut written = keeper.written.clone();
        written
            .wait_for(|written| *written == handed)
            .await
            .unwrap();
        clock.kept().await;
        let file = std::fs::read_to_string(folder.path().join("clock")).unwrap();
        assert!(file.starts_with("laneway-clock 1 "), "{file}");

        let folder = tempfile::tempdir().unwrap();
        let pipe = stuck(folder.path());
        let clock = SystemClock::kept_in(folder.path(), Duration::from_secs(1));
        clock.now();
        clock.kept().await;
        drop(std::fs::File::open(pipe));
    }
}

//! Recording from many threads at once, in memory or to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::event::{Attempt, Event, MessageId, Outcome, Record};

/// Enough that handlers on all cores seldom meet on one lock.
const SHARDS: usize = 32;

/// A thread-safe recorder of what happened, in the order in which it happened.
///
/// Share it by reference or `Arc`; recording in memory costs about as much as a clock reading and
/// a `Vec::push`.
#[derive(Debug)]
pub struct History {
    stamps: Stamps,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Memory(Vec<Mutex<Vec<Record>>>),
    File(File),
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// A history in memory, empty.
    #[must_use]
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            stamps: Stamps::new(),
            sink: Sink::Memory(shards),
        }
    }

    /// A history that appends each record to the file at `path` before the call returns, so that a
    /// kill loses nothing that was recorded. (It is not fsynced: keep the file on a disk that
    /// survives the fault.) Several processes may append to one file.
    ///
    /// # Errors
    /// The file can't be opened or read.
    pub fn append_to(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)?;
        // A line that a kill tore apart must not swallow the next one.
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self {
            stamps: Stamps::new(),
            sink: Sink::File(file),
        })
    }

    /// Records any event, with the next stamp.
    ///
    /// # Panics
    /// The file can't be written: a history with holes would judge falsely.
    pub fn record(&self, event: Event) {
        let record = Record {
            at: self.stamps.next(),
            event,
        };
        match &self.sink {
            Sink::Memory(shards) => {
                let shard = usize::try_from(record.at % SHARDS as u64).unwrap_or(0);
                shards[shard].lock().push(record);
            }
            Sink::File(file) => {
                // One write per line: appends of several threads and processes don't mix.
                let line = format!("{record}\n");
                let mut file = file;
                file.write_all(line.as_bytes())
                    .expect("the history file takes every record");
            }
        }
    }

    /// The message is about to be handed over.
    pub fn submitted(&self, key: impl Into<Arc<str>>, seq: u64) {
        self.record(Event::Submitted(MessageId::new(key, seq)));
    }

    /// The promise for the message was received.
    pub fn acked(&self, key: impl Into<Arc<str>>, seq: u64) {
        self.record(Event::Acked(MessageId::new(key, seq)));
    }

    /// The submitter was told that the message was not taken.
    pub fn refused(&self, key: impl Into<Arc<str>>, seq: u64) {
        self.record(Event::Refused(MessageId::new(key, seq)));
    }

    /// A handler began. Finish the returned [`Run`] at its end.
    pub fn started(&self, key: impl Into<Arc<str>>, seq: u64, attempt: Attempt) -> Run<'_> {
        let message = MessageId::new(key, seq);
        self.record(Event::Started(message.clone(), attempt));
        Run {
            history: self,
            owner: attempt.owner,
            message: Some(message),
        }
    }

    /// The message ended outside a handler: dead-lettered or parked by the bus.
    pub fn finished(&self, key: impl Into<Arc<str>>, seq: u64, owner: u64, outcome: Outcome) {
        self.record(Event::Finished {
            message: MessageId::new(key, seq),
            owner,
            outcome,
        });
    }

    /// The broker knows, durably, that the message is finished.
    pub fn settled(&self, key: impl Into<Arc<str>>, seq: u64) {
        self.record(Event::Settled(MessageId::new(key, seq)));
    }

    /// The owner can do nothing more.
    pub fn crashed(&self, owner: u64) {
        self.record(Event::Crashed { owner });
    }

    /// What was recorded in memory so far, in order. Empty for a history that appends to a file:
    /// [`read`](super::read) that.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let Sink::Memory(shards) = &self.sink else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for shard in shards {
            all.extend_from_slice(&shard.lock());
        }
        all.sort_unstable_by_key(|record| record.at);
        all
    }
}

/// A handler that runs. Dropped unfinished, it records that it was abandoned, or that it failed if
/// the drop comes from a panic.
#[derive(Debug)]
#[must_use = "dropping a run records that it was abandoned"]
pub struct Run<'a> {
    history: &'a History,
    owner: u64,
    /// `None` once the end is recorded.
    message: Option<MessageId>,
}

impl Run<'_> {
    /// The handler is at its end.
    pub fn finish(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(message) = self.message.take() {
            self.history.record(Event::Finished {
                message,
                owner: self.owner,
                outcome,
            });
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.end(if std::thread::panicking() {
            Outcome::Failed
        } else {
            Outcome::Abandoned
        });
    }
}

/// Stamps that grow strictly within a process and compare across the processes of a machine.
#[derive(Debug)]
struct Stamps {
    /// The wall clock is read once: a clock that is set during the run doesn't reorder anything.
    wall: u64,
    since: Instant,
    last: AtomicU64,
}

impl Stamps {
    fn new() -> Self {
        // A pause between the two readings would shift every stamp of this process. The reading
        // with the smallest gap is good to well under a microsecond.
        let reading = || {
            let before = Instant::now();
            let wall = SystemTime::now();
            (before.elapsed(), before, wall)
        };
        let (_, since, wall) = (0..16)
            .map(|_| reading())
            .min_by_key(|(gap, ..)| *gap)
            .unwrap_or_else(reading);
        Self {
            wall: nanos(wall.duration_since(UNIX_EPOCH).unwrap_or_default()),
            since,
            last: AtomicU64::new(0),
        }
    }

    fn next(&self) -> u64 {
        let now = self.wall + nanos(self.since.elapsed());
        // One atomic for all threads: if one record happened before another, so did its stamp.
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = now.max(last + 1);
            match self
                .last
                .compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return next,
                Err(seen) => last = seen,
            }
        }
    }
}

/// Good until the year 2554.
fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::lines::read;
    use super::*;

    #[test]
    fn threads_record_in_one_strict_order() {
        let history = History::new();
        thread::scope(|scope| {
            for owner in 0..8 {
                let history = &history;
                scope.spawn(move || {
                    (0..1000).for_each(|seq| history.finished("k", seq, owner, Outcome::Done));
                });
            }
        });
        let records = history.records();
        assert_eq!(records.len(), 8000);
        assert!(
            records.is_sorted_by(|a, b| a.at < b.at),
            "stamps are unique"
        );
        for thread in 0..8 {
            let of_thread = records.iter().filter_map(|record| match &record.event {
                Event::Finished { message, owner, .. } if *owner == thread => Some(message.seq),
                _ => None,
            });
            assert!(of_thread.eq(0..1000), "a thread's records keep their order");
        }
    }

    #[test]
    fn a_dropped_run_is_abandoned_and_a_panicking_one_failed() {
        let history = History::new();
        drop(history.started("k", 1, Attempt::default()));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _run = history.started("k", 2, Attempt::default());
            std::panic::resume_unwind(Box::new("boom"));
        }));
        assert!(panic.is_err());
        let outcomes: Vec<_> = history
            .records()
            .into_iter()
            .filter_map(|record| match record.event {
                Event::Finished { outcome, .. } => Some(outcome),
                _ => None,
            })
            .collect();
        assert_eq!(outcomes, [Outcome::Abandoned, Outcome::Failed]);
    }

    #[test]
    fn a_file_outlives_a_torn_line() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("history");
        History::append_to(&path)?.submitted("k", 1);
        let whole = std::fs::read(&path)?;
        let mut torn = whole.clone();
        torn.extend_from_slice(&whole[..whole.len() - 2]);
        std::fs::write(&path, torn)?;
        History::append_to(&path)?.acked("k", 1);

        let records = read(std::fs::read(&path)?.as_slice())?;
        let events: Vec<_> = records.into_iter().map(|record| record.event).collect();
        let message = MessageId::new("k", 1);
        assert_eq!(
            events,
            [Event::Submitted(message.clone()), Event::Acked(message)]
        );
        Ok(())
    }
}

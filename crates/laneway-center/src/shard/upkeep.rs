//! What has to be done now and then: scans, forgetting, trimming.

use std::time::Duration;

use laneway_cluster::owner::is_worth_trimming;
use laneway_delay::MessageId;
use tokio::time::Instant;

use super::Task;
use crate::options::Settings;

/// How often messages that are held back are asked for again.
const ASK: Duration = Duration::from_millis(250);

/// How many old messages are forgotten at once.
const FORGET: usize = 1_000;

/// Where there are more they follow after this.
const FORGET_ON: Duration = Duration::from_millis(500);

/// What a record has about, where its size is not known.
const RECORD: u64 = 512;

/// A trim that gets no further in so many steps pauses everything else.
const STALLED: u32 = 20;

/// When to do what.
#[derive(Debug)]
pub(super) struct Upkeep {
    ask: Instant,
    scan: Instant,
    forget: Instant,
    /// The first one of those that were forgotten last.
    forgot: Option<MessageId>,
    look: Instant,
    /// Bytes of the log, about, and those behind the last `open`.
    log_bytes: u64,
    since_open: u64,
    /// An `open` is to be written.
    is_wanted: bool,
    is_pausing: bool,
    stalled: u32,
}

impl Upkeep {
    pub(super) fn new(settings: &Settings) -> Self {
        let now = Instant::now();
        Self {
            ask: now + ASK,
            scan: now + settings.scan,
            forget: now + settings.forget,
            forgot: None,
            look: now + settings.trim,
            log_bytes: 0,
            since_open: 0,
            is_wanted: false,
            is_pausing: false,
            stalled: 0,
        }
    }

    pub(super) fn next(&self) -> Instant {
        self.ask.min(self.scan).min(self.forget).min(self.look)
    }

    pub(super) fn scan_soon(&mut self) {
        self.ask = Instant::now();
    }

    /// A record was read.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.log_bytes += bytes as u64;
        self.since_open += bytes as u64;
    }

    /// The log of a view that was opened has so many records, about.
    pub(super) fn resumed(&mut self, records: u64) {
        self.log_bytes = records.saturating_mul(RECORD);
        self.since_open = self.log_bytes;
    }

    /// The log begins at an `open` now.
    pub(super) fn trimmed(&mut self, next: u64, before: u64) {
        let most = next.saturating_sub(before).saturating_mul(RECORD * 128);
        self.log_bytes = self.since_open.min(most);
    }

    /// Nothing new may be decided, until what was decided is read back.
    pub(super) const fn is_pausing(&self) -> bool {
        self.is_pausing
    }

    pub(super) fn stop_trimming(&mut self) {
        self.is_pausing = false;
        self.is_wanted = false;
        self.stalled = 0;
    }
}

impl Task {
    /// Whether events are taken now.
    pub(super) fn may_take(&self) -> bool {
        !self.upkeep.is_pausing()
    }

    pub(super) fn keep_up(&mut self) {
        let now = Instant::now();
        if now >= self.upkeep.ask {
            self.upkeep.ask = now + ASK;
            self.ask_again();
        }
        if now >= self.upkeep.scan {
            self.upkeep.scan = now + self.shared.settings.scan;
            self.waiting.sweep();
            self.scan();
            let head = self.shard.head();
            tracing::debug!(
                shard = self.number,
                standing = ?self.owner.standing(),
                next = head.next,
                open = ?head.open,
                without_image = head.without_image,
                rows = head.rows,
                is_drained = self.owner.is_drained(),
                is_appending = self.is_appending,
                to_append = self.to_append.len(),
                upkeep = ?self.upkeep,
                "scanned a shard"
            );
        }
        if now >= self.upkeep.forget {
            self.upkeep.forget = now + self.shared.settings.forget;
            self.forget_old();
        }
        if now >= self.upkeep.look {
            self.upkeep.look = now + self.shared.settings.trim;
            self.look_at_size();
        }
        self.trim_step();
    }

    fn forget_old(&mut self) {
        if !self.is_owning() {
            return;
        }
        let now = self.now();
        let keep = self.shared.settings.owner.keep;
        let before = now.as_millis().saturating_sub(millis(keep));
        let before = laneway_delay::Timestamp::from_millis(before);
        let rows = self.shard.table();
        match rows.view.forgettable(None, before, FORGET) {
            Ok(ids) => {
                let first = ids.first().map(|(_, id)| id.clone());
                // There are more, and it gets on with them.
                if ids.len() == FORGET && first != self.upkeep.forgot {
                    self.upkeep.forget = self.upkeep.forget.min(Instant::now() + FORGET_ON);
                }
                self.upkeep.forgot = first;
                for (_, id) in ids {
                    self.owner.forget(&self.shard, &id, now);
                }
            }
            Err(error) => {
                tracing::error!(shard = self.number, %error, "ended messages cannot be read from a view");
            }
        }
    }

    fn look_at_size(&mut self) {
        let log = self.upkeep.log_bytes;
        if !self.is_owning() || log < self.shared.settings.trim_bytes {
            return;
        }
        let needed = self.shard.table().view.needed_bytes();
        self.upkeep.is_wanted = is_worth_trimming(log, needed);
    }

    /// One step of making the log complete by itself. An `open` and a `close` are written when nothing else is under way:
    /// until then nothing new is taken, which is for the time of an append.
    fn trim_step(&mut self) {
        let head = self.shard.head();
        let unfinished = head.open.filter(|open| !open.is_closed);
        if unfinished.is_some() {
            self.upkeep.is_wanted = false;
        }
        let is_going_on = unfinished.is_some() || self.upkeep.is_wanted;
        if !self.is_owning() || !self.announcing.is_assigned || !is_going_on {
            self.upkeep.is_pausing = false;
            return;
        }
        let is_carrying = unfinished.is_some() && head.without_image > 0;
        self.upkeep.is_pausing = !is_carrying || self.upkeep.stalled > STALLED;
        if self.is_appending || !self.to_append.is_empty() {
            return;
        }
        let decisions = self.owner.trim(&self.shard, self.upkeep.is_wanted);
        if decisions.is_empty() {
            self.upkeep.stalled += 1;
        } else {
            self.upkeep.stalled = 0;
        }
        self.decide(decisions);
    }

    /// A record is applied.
    pub(super) fn passed(&mut self, offset: u64, bytes: usize) {
        self.upkeep.passed(bytes);
        let open = self.shard.head().open;
        if open.is_some_and(|open| open.offset == offset) {
            self.upkeep.since_open = bytes as u64;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

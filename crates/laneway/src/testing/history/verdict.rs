//! What the checker found.

use std::fmt;

use super::event::MessageId;

/// How many violations of a kind are told in full; the rest are counted.
pub(super) const TOLD: u64 = 5;

/// The ways to break a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Acked, and never finished.
    AckedLost,
    /// Not acked, but submitted to an engine that takes all, or begun: and never finished.
    NeverFinished,
    /// A later message of the key started before an earlier one was finished.
    OutOfOrder,
    /// A later message of the key started while an earlier one waited for its retry.
    RetriedOutOfOrder,
    /// Two of one key, or of one lane, at a time.
    Overlap,
    /// Run again after it was finished, with no crash to excuse it; or, where nothing may run
    /// twice, run again at all.
    Duplicate,
    /// Run again after it was settled. No crash excuses that.
    RunAfterSettled,
    /// Settled before it was finished: a crash would lose it.
    SettledEarly,
    /// Started under an older ownership epoch than one already seen for the key.
    StaleOwner,
    /// Run, but never submitted; or run although the submitter was told no.
    Phantom,
    /// More running or outstanding than the rules allow.
    BoundExceeded,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::AckedLost,
        Self::NeverFinished,
        Self::OutOfOrder,
        Self::RetriedOutOfOrder,
        Self::Overlap,
        Self::Duplicate,
        Self::RunAfterSettled,
        Self::SettledEarly,
        Self::StaleOwner,
        Self::Phantom,
        Self::BoundExceeded,
    ];

    /// The name in reports, such as `acked_lost`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AckedLost => "acked_lost",
            Self::NeverFinished => "never_finished",
            Self::OutOfOrder => "out_of_order",
            Self::RetriedOutOfOrder => "retried_out_of_order",
            Self::Overlap => "overlap",
            Self::Duplicate => "duplicate",
            Self::RunAfterSettled => "run_after_settled",
            Self::SettledEarly => "settled_early",
            Self::StaleOwner => "stale_owner",
            Self::Phantom => "phantom",
            Self::BoundExceeded => "bound_exceeded",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One broken promise, with the history around it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The promise that was broken.
    pub kind: Kind,
    /// The message that it was broken for.
    pub message: MessageId,
    /// What happened, in a sentence.
    pub what: String,
    /// The records of the key around it; the one at fault is marked with `>`.
    pub context: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            message,
            what,
            context,
        } = self;
        write!(
            f,
            "{kind}: key {:?} sequence {} {what}",
            message.key, message.seq
        )?;
        context
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What a history held, good or bad.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Records read.
    pub records: u64,
    /// Different messages.
    pub messages: u64,
    /// Different keys.
    pub keys: u64,
    /// Handler starts.
    pub runs: u64,
    /// Tries that ended as failed or abandoned.
    pub failed: u64,
    /// Messages that were dead-lettered.
    pub dead_lettered: u64,
    /// Messages that were parked.
    pub parked: u64,
    /// Owners that crashed.
    pub crashes: u64,
    /// Runs of what had been finished but not settled when its owner crashed.
    pub forgiven_duplicates: u64,
    /// Submitted and not finished, lost or not.
    pub unfinished: u64,
    /// The most handlers at a time.
    pub peak_running: u64,
    /// The most messages acked and not finished at a time.
    pub peak_outstanding: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a verdict that nobody reads judges nothing"]
pub struct Verdict {
    pub(super) totals: Totals,
    pub(super) counts: [u64; Kind::ALL.len()],
    pub(super) violations: Vec<Violation>,
}

impl Verdict {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// How often a promise was broken.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// The kinds of violations found.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        Kind::ALL.into_iter().filter(|kind| self.count(*kind) > 0)
    }

    /// Everything that breaks the order of a key: overtaken, retried behind later ones, or two at
    /// a time.
    #[must_use]
    pub fn order_violations(&self) -> u64 {
        [Kind::OutOfOrder, Kind::RetriedOutOfOrder, Kind::Overlap]
            .map(|kind| self.count(kind))
            .iter()
            .sum()
    }

    /// The first few violations of each kind, in full.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// What the history held.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Ends a test with the full report unless every promise was kept.
    ///
    /// # Panics
    /// A promise was broken.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals {
            records,
            messages,
            keys,
            runs,
            failed,
            dead_lettered,
            parked,
            crashes,
            forgiven_duplicates,
            unfinished,
            peak_running,
            peak_outstanding,
        } = self.totals;
        let judged = if self.is_ok() {
            "every promise kept"
        } else {
            "promises broken"
        };
        writeln!(
            f,
            "{judged}: {records} records, {messages} messages of {keys} keys, {runs} runs \
             (at most {peak_running} at a time, {peak_outstanding} outstanding), {failed} failed, \
             {dead_lettered} dead-lettered, {parked} parked, {crashes} crashes, \
             {forgiven_duplicates} forgiven duplicates, {unfinished} unfinished"
        )?;
        for kind in self.kinds() {
            writeln!(f, "  {kind}: {}", self.count(kind))?;
        }
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        Ok(())
    }
}

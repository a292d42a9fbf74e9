//! The rules that earlier drafts lacked, and the tests that show what happens without each of them.
//!
//! In a build that is not a test of this crate every rule holds, and nothing can switch one off.

/// A rule that can be switched off in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "some are asked for by the model alone")
)]
pub(crate) enum Rule {
    /// A fact counts only if the owner of the shard wrote it.
    OnlyOwnersWrite,
    /// An owner is told from another one of its epoch by its reign.
    Reigns,
    /// A fact counts only if it is the next one of its reign.
    Sequences,
    /// What is remembered of a message is bounded.
    BoundedHistory,
    /// Applying looks at no clock.
    NoClock,
    /// A row counts only on the version that it is based on.
    Bases,
    /// A carried row counts only above the version that is known.
    CarriedAbove,
    /// A row of an id that is not known leaves its version behind.
    Stubs,
    /// Records whose writer had read something else are void.
    Chains,
    /// A submit with an id or a key waits for the owner's verdict.
    Verdicts,
    /// The digest of a request does not cover the due time that was computed from it.
    DigestAsWritten,
    /// What waited too long in the intake is not accepted.
    IntakeAge,
    /// A worker gets the go when the begun attempt has been read back.
    GoAfterReadBack,
    /// A worker refuses what comes from an epoch below the highest that it has answered.
    WorkerEpochs,
    /// Only the worker that has an attempt can disclaim it, to the epoch that asks.
    OwnDisclaims,
    /// Extend and withdraw are refused while an attempt may have delivered the message.
    RefuseInDoubt,
    /// Answers that change nothing wait for a fact that is read back.
    Barriers,
    /// What was sent under a sequence is never sent otherwise.
    FrozenBytes,
    /// After an unknown append everything that was not read back is sent again, in order.
    ResendAll,
    /// One row ends a dead message and makes the new one.
    ReplayInOneRow,
    /// The log is trimmed when all that is needed has been carried and closed.
    TrimAfterClose,
}

/// Which rules hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    #[cfg(test)]
    without: Option<Rule>,
}

impl Rules {
    /// Whether a rule holds: always, but in tests of what happens without it.
    #[cfg(not(test))]
    #[inline]
    #[expect(clippy::unused_self, reason = "tests have a rule that is off")]
    pub(crate) const fn holds(self, _: Rule) -> bool {
        true
    }

    #[cfg(test)]
    pub(crate) fn holds(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// All rules but one.
    #[cfg(test)]
    pub(crate) const fn without(rule: Rule) -> Self {
        Self {
            without: Some(rule),
        }
    }
}

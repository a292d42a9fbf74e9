//! What a fault run comes to: counts, some of which must have a certain value.

use std::fmt;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use laneway::testing::history::{self, Kind};

/// Counts, and whether they are what they must be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a verdict that nobody reads judges nothing"]
pub struct Verdict {
    counts: Vec<Count>,
    details: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Count {
    name: String,
    value: u64,
    /// None: told, not judged.
    required: Option<u64>,
}

impl Count {
    fn holds(&self) -> bool {
        self.required.is_none_or(|required| self.value == required)
    }
}

impl Verdict {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something worth knowing, whatever its value.
    pub fn count(mut self, name: impl Into<String>, value: u64) -> Self {
        self.push(name.into(), value, None);
        self
    }

    /// Something that must have a certain value for the run to pass.
    pub fn must_be(mut self, name: impl Into<String>, value: u64, required: u64) -> Self {
        self.push(name.into(), value, Some(required));
        self
    }

    /// How many of all were in time. Required only of a full run: a short one is a test among others, on a
    /// machine that may be busy, and says nothing about times.
    pub fn in_time(self, name: impl Into<String>, value: u64, all: u64, is_full: bool) -> Self {
        if is_full {
            self.must_be(name, value, all)
        } else {
            self.count(name, value)
        }
    }

    /// Calls a count by another name.
    pub fn renamed(mut self, name: &str, other: &str) -> Self {
        for count in &mut self.counts {
            if count.name == name {
                other.clone_into(&mut count.name);
            }
        }
        self
    }

    /// From now on a count that was only told must have a certain value.
    pub fn require(mut self, name: &str, required: u64) -> Self {
        for count in &mut self.counts {
            if count.name == name {
                count.required = Some(required);
            }
        }
        self
    }

    /// Adds the counts of another verdict, each with its subject.
    pub fn and(mut self, subject: &str, other: Self) -> Self {
        self.counts
            .extend(other.counts.into_iter().map(|count| Count {
                name: format!("{subject}: {}", count.name),
                ..count
            }));
        self.details.extend(other.details);
        self
    }

    /// What went wrong, for people to read below the table.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.details.push(detail.into());
        self
    }

    /// Whether everything that must hold does.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.counts.iter().all(Count::holds)
    }

    fn push(&mut self, name: String, value: u64, required: Option<u64>) {
        self.counts.push(Count {
            name,
            value,
            required,
        });
    }
}

/// What the history checker found: how much there was, and every kind of broken promise.
impl From<&history::Verdict> for Verdict {
    fn from(history: &history::Verdict) -> Self {
        let totals = history.totals();
        let mut verdict = Self::new()
            .count("messages", totals.messages)
            .count("runs", totals.runs)
            .count("crashes", totals.crashes)
            .count("duplicates after a crash", totals.forgiven_duplicates)
            .must_be("lost", history.count(Kind::AckedLost), 0)
            .must_be("order violations", history.order_violations(), 0)
            .must_be("duplicates", history.count(Kind::Duplicate), 0);
        let told = [
            Kind::AckedLost,
            Kind::OutOfOrder,
            Kind::RetriedOutOfOrder,
            Kind::Overlap,
            Kind::Duplicate,
        ];
        for kind in history.kinds().filter(|kind| !told.contains(kind)) {
            verdict = verdict.must_be(kind.as_str(), history.count(kind), 0);
        }
        let details = history.violations().iter().map(ToString::to_string);
        verdict.details.extend(details);
        verdict
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_style(UTF8_FULL_CONDENSED)
            .set_header(["", "count", "must be", ""]);
        for count in &self.counts {
            let judged = match (count.required, count.holds()) {
                (None, _) => "",
                (Some(_), true) => "ok",
                (Some(_), false) => "BROKEN",
            };
            let required = count.required.map(|required| required.to_string());
            table.add_row([
                count.name.clone(),
                count.value.to_string(),
                required.unwrap_or_default(),
                judged.to_owned(),
            ]);
        }
        for number in [1, 2] {
            if let Some(column) = table.column_mut(number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(f, "{}", table.trim_fmt())?;
        for detail in &self.details {
            writeln!(f, "{detail}")?;
        }
        write!(f, "{}", if self.passes() { "PASS" } else { "FAIL" })
    }
}

#[cfg(test)]
mod tests {
    use laneway::testing::history::{Attempt, History, Outcome, Rules};

    use super::Verdict;

    #[test]
    fn only_what_must_hold_is_judged() {
        let verdict = Verdict::new().count("kills", 3).must_be("lost", 0, 0);
        assert!(verdict.passes());
        assert!(verdict.to_string().ends_with("PASS"));
        let verdict = verdict.must_be("seen", 2, 3).detail("redis was not seen");
        assert!(!verdict.passes());
        let text = verdict.to_string();
        assert!(text.contains("BROKEN"), "{text}");
        assert!(text.ends_with("redis was not seen\nFAIL"), "{text}");
    }

    #[test]
    fn what_was_only_told_can_be_required() {
        let verdict = Verdict::new()
            .count("crashes", 1)
            .renamed("crashes", "kills");
        assert!(verdict.clone().require("kills", 1).passes());
        assert!(!verdict.require("kills", 0).passes());
    }

    #[test]
    fn a_broken_order_in_a_history_fails() {
        let history = History::new();
        for seq in 1..=2 {
            history.submitted("order-7", seq);
            history.acked("order-7", seq);
        }
        for seq in [2, 1] {
            let run = history.started("order-7", seq, Attempt::default());
            run.finish(Outcome::Done);
        }
        let verdict = Verdict::from(&Rules::exactly_once().check(history.records()));
        assert!(!verdict.passes());
        let text = verdict.to_string();
        assert!(text.contains("order violations"), "{text}");
        assert!(text.contains("order-7"), "{text}");
    }

    #[test]
    fn a_verdict_fails_with_any_of_its_parts() {
        let good = Verdict::new().must_be("lost", 0, 0);
        let bad = Verdict::new().must_be("lost", 1, 0).detail("order-7");
        assert!(good.clone().and("other disk", good.clone()).passes());
        let both = good.and("other disk", bad);
        assert!(!both.passes());
        assert!(both.to_string().contains("other disk: lost"));
    }

    #[test]
    fn a_lost_message_fails() {
        let history = History::new();
        history.submitted("order-7", 1);
        history.acked("order-7", 1);
        let verdict = Verdict::from(&Rules::exactly_once().check(history.records()));
        assert!(!verdict.passes());
    }
}

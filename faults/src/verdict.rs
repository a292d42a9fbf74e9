//! What a fault run comes to: counts, some of which must have a certain value.

use std::fmt;

use laneway::testing::history::{self, Kind};
use runs::{Figures, Medium};

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
    required: Option<Bound>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Is(u64),
    AtLeast(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => write!(f, "{value}"),
            Self::AtLeast(value) => write!(f, "{value} or more"),
        }
    }
}

impl Count {
    fn holds(&self) -> bool {
        self.required.is_none_or(|required| match required {
            Bound::Is(value) => self.value == value,
            Bound::AtLeast(value) => self.value >= value,
        })
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
        self.push(name.into(), value, Some(Bound::Is(required)));
        self
    }

    /// A count that was only told must be so large for the run to pass.
    pub fn at_least(mut self, name: &str, least: u64) -> Self {
        for count in &mut self.counts {
            if count.name == name {
                count.required = Some(Bound::AtLeast(least));
            }
        }
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
                count.required = Some(Bound::Is(required));
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

    /// Adds up the counts of one name, of what was judged in several parts.
    pub fn plus(mut self, other: Self) -> Self {
        for count in other.counts {
            match self.counts.iter_mut().find(|own| own.name == count.name) {
                Some(own) => own.value += count.value,
                None => self.counts.push(count),
            }
        }
        self.details.extend(other.details);
        self
    }

    /// The value of a count.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<u64> {
        let count = self.counts.iter().find(|count| count.name == name);
        count.map(|count| count.value)
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

    /// All counts, for `--json`.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for count in &self.counts {
            figures.set_count(&count.name, Some(count.value));
        }
        figures
    }

    fn push(&mut self, name: String, value: u64, required: Option<Bound>) {
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
        let rows = self.counts.iter().map(|count| {
            let judged = match (count.required, count.holds()) {
                (None, _) => "",
                (Some(_), true) => "ok",
                (Some(_), false) => "BROKEN",
            };
            let required = count.required.map(|required| required.to_string());
            [
                count.name.clone(),
                count.value.to_string(),
                required.unwrap_or_default(),
                judged.to_owned(),
            ]
        });
        let header = ["", "count", "must be", ""];
        writeln!(f, "{}", runs::table(Medium::Terminal, header, 1..=2, rows))?;
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
    fn parts_are_added_up_and_can_be_too_few() {
        let part = |lost| Verdict::new().count("cuts", 2).must_be("lost", lost, 0);
        let both = part(0).plus(part(0));
        assert_eq!(both.value("cuts"), Some(4));
        assert!(both.clone().at_least("cuts", 4).passes());
        assert!(!both.clone().at_least("cuts", 5).passes());
        assert!(!both.plus(part(1)).passes());
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

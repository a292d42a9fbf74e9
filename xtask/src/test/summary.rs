//! What ran and what came of it, for people and for the exit code.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use needs::Skip;

/// Long reasons are wrapped here, in a log too.
const WIDTH: u16 = 140;

/// One line of the table: a check, a service or a test program.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) suite: String,
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: Vec<Skip>,
    /// What failed, one short line each.
    pub(super) failures: Vec<String>,
    /// Something worth knowing all the same.
    pub(super) note: String,
    /// Zero where it cannot be told apart from others.
    pub(super) took: Duration,
}

impl Row {
    /// A thing that either holds or does not: a check, or a program that must compile.
    pub(super) fn check(
        suite: impl Into<String>,
        outcome: Result<(), String>,
        took: Duration,
    ) -> Self {
        let failures: Vec<String> = outcome.err().into_iter().collect();
        Self {
            suite: suite.into(),
            passed: usize::from(failures.is_empty()),
            failed: failures.len(),
            failures,
            took,
            ..Self::default()
        }
    }

    /// Whether it has nothing to say: a program without tests.
    pub(super) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.skipped.len() == 0
    }

    /// The reasons, each with the number of tests it stopped.
    fn why(&self) -> String {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for skip in &self.skipped {
            *reasons.entry(&skip.why).or_default() += 1;
        }
        let mut why = String::new();
        let _ = writeln!(why, "{}", self.note);
        for failure in &self.failures {
            let _ = writeln!(why, "failed: {failure}");
        }
        for (reason, count) in reasons {
            let _ = match count {
                1 => writeln!(why, "skipped: {reason}"),
                _ => writeln!(why, "{count} skipped: {reason}"),
            };
        }
        why.trim().to_owned()
    }
}

/// All rows of a run.
#[derive(Debug, Default)]
pub(super) struct Summary {
    rows: Vec<Row>,
}

impl Summary {
    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Turns tests that wanted a service into failures, for runs in which all services must be
    /// there.
    pub(super) fn fail_skipped(&mut self) {
        for row in &mut self.rows {
            for skip in row.skipped.extract_if(.., |skip| skip.wants_service()) {
                row.failed += 1;
                row.failures.push(format!("{}: {}", skip.test, skip.why));
            }
        }
    }

    pub(super) fn passed(&self) -> usize {
        self.rows.iter().map(|row| row.passed).sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.rows.iter().map(|row| row.failed).sum()
    }

    pub(super) fn skipped(&self) -> usize {
        self.rows.iter().map(|row| row.skipped.len()).sum()
    }

    /// The table, and a last line for machines: `N passed, N failed, N skipped`.
    pub(super) fn render(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH)
            .set_header(["suite", "passed", "failed", "skipped", "time", ""]);
        for row in &self.rows {
            table.add_row([
                row.suite.clone(),
                count(row.passed),
                count(row.failed),
                count(row.skipped.len()),
                seconds(row.took),
                row.why(),
            ]);
        }
        for number in 1..=4 {
            if let Some(column) = table.column_mut(number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        format!(
            "{table}\n{} passed, {} failed, {} skipped",
            self.passed(),
            self.failed(),
            self.skipped()
        )
    }
}

fn seconds(time: Duration) -> String {
    if time.is_zero() {
        return String::new();
    }
    format!("{:.1} s", time.as_secs_f64())
}

/// Zeroes would hide the numbers that matter.
fn count(number: usize) -> String {
    match number {
        0 => String::new(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use needs::Skip;

    use super::{Row, Summary};

    fn with_a_skip() -> Summary {
        let mut summary = Summary::default();
        summary.add(Row::check("fmt", Ok(()), Duration::ZERO));
        summary.add(Row {
            suite: "laneway nats_publish".into(),
            passed: 3,
            skipped: vec![Skip {
                test: "a".into(),
                why: "needs nats: not set".into(),
            }],
            ..Row::default()
        });
        summary
    }

    #[test]
    fn the_last_line_adds_up() {
        let text = with_a_skip().render();
        assert_eq!(text.lines().last(), Some("4 passed, 0 failed, 1 skipped"));
        assert!(text.contains("skipped: needs nats: not set"), "{text}");
    }

    #[test]
    fn a_skip_is_a_failure_where_services_are_required() {
        let mut summary = with_a_skip();
        summary.fail_skipped();
        let text = summary.render();
        assert_eq!(text.lines().last(), Some("4 passed, 1 failed, 0 skipped"));
        assert!(text.contains("failed: a: needs nats: not set"), "{text}");
    }
}

//! Reads what a test program prints.
//!
//! The totals come from its `test result:` lines, because these cannot be torn apart by what a test
//! prints; the single `test NAME ... ok` lines only feed the progress display and the names of
//! failures. Tests that skipped themselves are known by their lines on the standard error (see the
//! `needs` crate): the harness counts them as passed, this report does not.

use std::collections::{BTreeMap, BTreeSet};

use needs::Skip;

/// What one test program, or one run of doc tests, has said so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Result lines seen. None means that the program died before its end.
    results: usize,
    /// As the harness counts them: tests that skipped themselves are among them.
    passed: usize,
    failed: usize,
    failures: Vec<String>,
    ignored: Vec<Skip>,
    /// Tests that skipped themselves, and why. By name: one that says it twice counts once.
    skipped_themselves: BTreeMap<String, String>,
    /// Single tests that ended, by name.
    ended: BTreeSet<String>,
    /// Single tests that ended well: all there is when the program dies before its totals.
    ended_ok: usize,
}

impl Report {
    /// Takes one line of the standard output.
    pub(super) fn out(&mut self, line: &str) {
        if let Some(totals) = line.strip_prefix("test result: ") {
            self.results += 1;
            self.passed += total(totals, "passed");
            self.failed += total(totals, "failed");
            return;
        }
        let Some((name, outcome)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
        else {
            return;
        };
        self.ended.insert(name.to_owned());
        if outcome.starts_with("ok") {
            self.ended_ok += 1;
        } else if outcome.starts_with("FAILED") {
            self.failures.push(name.to_owned());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let why = reason.strip_prefix(", ").unwrap_or("marked #[ignore]");
            self.ignored.push(Skip {
                test: name.to_owned(),
                why: why.to_owned(),
            });
        }
    }

    /// Takes one line of the standard error.
    pub(super) fn err(&mut self, line: &str) {
        if let Some(skip) = Skip::parse(line) {
            self.skipped_themselves.insert(skip.test, skip.why);
        }
    }

    /// How many tests have ended so far.
    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Which tests of `list`, the output of the program's `--list`, have not ended.
    pub(super) fn not_ended<'list>(&self, list: &'list str) -> Vec<&'list str> {
        list.lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .filter(|test| !self.ended.contains(*test))
            .collect()
    }

    /// Whether the program lived to give its totals.
    pub(super) fn is_complete(&self) -> bool {
        self.results > 0
    }

    pub(super) fn passed(&self) -> usize {
        let passed = if self.is_complete() {
            self.passed
        } else {
            self.ended_ok
        };
        passed.saturating_sub(self.truly_skipped().count())
    }

    pub(super) fn failed(&self) -> usize {
        self.failed.max(self.failures.len())
    }

    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    pub(super) fn skipped(&self) -> Vec<Skip> {
        let mut skipped = self.ignored.clone();
        skipped.extend(self.truly_skipped().map(|(test, why)| Skip {
            test: test.clone(),
            why: why.clone(),
        }));
        skipped
    }

    /// A test that announced a skip and failed all the same has failed.
    fn truly_skipped(&self) -> impl Iterator<Item = (&String, &String)> {
        self.skipped_themselves
            .iter()
            .filter(|(test, _)| !self.failures.contains(test))
    }
}

/// The number before `word` in `ok. 3 passed; 0 failed; 1 ignored; ...`.
fn total(totals: &str, word: &str) -> usize {
    totals
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Report;

    fn read(out: &str, err: &str) -> Report {
        let mut report = Report::default();
        out.lines().for_each(|line| report.out(line));
        err.lines().for_each(|line| report.err(line));
        report
    }

    const RUN: &str = "\
running 4 tests
test ok_one ... ok
test module::needs_nats ... ok
test long ... ignored, takes an hour
test broken - should panic ... FAILED

failures:

---- broken stdout ----
note: test did not panic as expected

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s
";

    #[test]
    fn a_skip_is_taken_off_the_passed() {
        let report = read(RUN, "skipped: module::needs_nats: needs nats: not set\n");
        assert_eq!((report.passed(), report.failed()), (1, 1));
        let skipped: Vec<_> = report.skipped().into_iter().map(|skip| skip.why).collect();
        assert_eq!(skipped, ["takes an hour", "needs nats: not set"]);
        assert_eq!(report.failures(), ["broken - should panic"]);
        assert_eq!(report.ended(), 4);
    }

    #[test]
    fn a_skip_said_twice_counts_once() {
        let line = "skipped: module::needs_nats: needs nats: not set\n";
        let report = read(RUN, &line.repeat(2));
        assert_eq!((report.passed(), report.skipped().len()), (1, 2));
    }

    #[test]
    fn a_test_that_fails_after_a_skip_has_failed() {
        let report = read(
            "test a ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored",
            "skipped: a: needs nats: not set",
        );
        assert_eq!((report.passed(), report.failed()), (0, 1));
        assert!(report.skipped().is_empty());
    }

    #[test]
    fn output_in_the_middle_of_a_line_costs_a_name_but_no_count() {
        let report = read(
            "test a ... a child process wrote this\nok\ntest result: ok. 1 passed; 0 failed; 0 ignored",
            "",
        );
        assert_eq!((report.passed(), report.failed()), (1, 0));
    }

    #[test]
    fn a_program_that_dies_is_not_complete() {
        let report = read("running 2 tests\ntest a ... ok\n", "");
        assert!(!report.is_complete());
        assert_eq!(report.passed(), 1);
        let list = "a: test\nmodule::b: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(report.not_ended(list), ["module::b"]);
    }

    #[test]
    fn doc_tests_of_several_crates_add_up() {
        let result = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(read(&result.repeat(2), "").passed(), 6);
    }
}

//! Proof that the checker bites: a small engine over a small log that works, and that can be made
//! to misbehave in one way at a time. Each bug must be found, by its own name and by no other.

mod simulation;

use std::time::{Duration, Instant};

use super::event::{Attempt, Outcome};
use super::{History, Kind, Rules};
use simulation::{Bug, Mode, Simulation};

const WORKERS: usize = 3;
const OUTSTANDING: usize = 12;

fn rules(mode: Mode) -> Rules {
    match mode {
        Mode::Memory => Rules::exactly_once().max_outstanding(OUTSTANDING),
        Mode::Log => Rules::at_least_once(),
        Mode::Plain => Rules::at_most_once(),
    }
    .max_running(WORKERS)
}

#[test]
fn sound_engines_are_never_accused() {
    for mode in [Mode::Memory, Mode::Log, Mode::Plain] {
        let mut forgiven = 0;
        let mut failed = 0;
        for seed in 0..2000 {
            let verdict = rules(mode).check(Simulation::run(mode, None, seed).records);
            assert!(verdict.is_ok(), "{mode:?}, seed {seed}: {verdict}");
            forgiven += verdict.totals().forgiven_duplicates;
            failed += verdict.totals().failed;
        }
        // The simulation does visit what the rules excuse.
        assert!(failed > 1000, "{mode:?}: {failed} failed");
        assert_eq!(
            forgiven > 1000,
            mode == Mode::Log,
            "{mode:?}: {forgiven} forgiven"
        );
    }
}

#[test]
fn each_planted_bug_is_found_by_its_name() {
    use Kind::{
        AckedLost, BoundExceeded, Duplicate, NeverFinished, OutOfOrder, Overlap, Phantom,
        RetriedOutOfOrder, RunAfterSettled, SettledEarly, StaleOwner,
    };
    let bugs: &[(Mode, Bug, &[Kind])] = &[
        (Mode::Memory, Bug::DropsMessage, &[AckedLost]),
        (Mode::Memory, Bug::DropsUnacked, &[NeverFinished]),
        (Mode::Memory, Bug::LosesLast, &[AckedLost]),
        (Mode::Memory, Bug::NewestFirst, &[OutOfOrder]),
        (Mode::Memory, Bug::RetriesNext, &[RetriedOutOfOrder]),
        (Mode::Log, Bug::RetriesAtTheEnd, &[RetriedOutOfOrder]),
        (Mode::Memory, Bug::GivesUpSilently, &[AckedLost]),
        (Mode::Memory, Bug::TwoOfOneKey, &[Overlap]),
        (Mode::Memory, Bug::RunsTwice, &[Duplicate]),
        (Mode::Log, Bug::RunsTwice, &[Duplicate]),
        (Mode::Memory, Bug::Invents, &[Phantom]),
        (Mode::Memory, Bug::RunsRefused, &[Phantom]),
        (Mode::Memory, Bug::MixesKeysUp, &[AckedLost, Phantom]),
        (Mode::Memory, Bug::OneWorkerTooMany, &[BoundExceeded]),
        (Mode::Memory, Bug::TakesTooMuch, &[BoundExceeded]),
        (Mode::Log, Bug::AcksBeforeDurable, &[AckedLost]),
        (Mode::Log, Bug::SettlesUnfinished, &[SettledEarly]),
        (Mode::Log, Bug::SkipsUnfinishedAfterCrash, &[AckedLost]),
        (Mode::Log, Bug::OvertakesAfterCrash, &[OutOfOrder]),
        (Mode::Log, Bug::ReplaysOutOfOrder, &[OutOfOrder]),
        (Mode::Log, Bug::ReplaysSettled, &[RunAfterSettled]),
        (Mode::Log, Bug::OldOwnerStarts, &[StaleOwner]),
        (Mode::Log, Bug::OldOwnerGoesOn, &[Overlap]),
        (Mode::Plain, Bug::RetriesNext, &[Duplicate]),
        (Mode::Plain, Bug::RunsTwice, &[Duplicate]),
    ];
    for (mode, bug, kinds) in bugs {
        let mut planted = 0;
        for seed in 0..400 {
            let simulation = Simulation::run(*mode, Some(*bug), seed);
            if !simulation.planted {
                continue;
            }
            planted += 1;
            let verdict = rules(*mode).check(simulation.records);
            let found: Vec<_> = verdict.kinds().collect();
            assert_eq!(found, *kinds, "{mode:?} {bug:?}, seed {seed}: {verdict}");
            assert!(!verdict.violations().is_empty());
        }
        assert!(
            planted >= 50,
            "{mode:?} {bug:?} was planted only {planted} times"
        );
    }
}

#[test]
fn keys_that_share_a_lane_do_not_overlap() {
    let history = History::new();
    for key in ["a", "b"] {
        history.submitted(key, 1);
    }
    let first = history.started("a", 1, Attempt::default());
    history
        .started("b", 1, Attempt::default())
        .finish(Outcome::Done);
    first.finish(Outcome::Done);
    Rules::exactly_once().check(history.records()).assert_ok();
    let verdict = Rules::exactly_once().lanes(|_| 0).check(history.records());
    assert_eq!(verdict.kinds().collect::<Vec<_>>(), [Kind::Overlap]);
    assert!(
        verdict
            .to_string()
            .contains("sequence 1 of its lane was running"),
        "{verdict}"
    );
}

#[test]
fn what_is_left_behind_is_excused_but_what_was_overtaken_is_not() {
    let history = History::new();
    for seq in 1..=3 {
        history.submitted("k", seq);
        history.acked("k", seq);
    }
    history
        .started("k", 1, Attempt::default())
        .finish(Outcome::Done);
    let drained = Rules::exactly_once().check(history.records());
    assert_eq!(drained.count(Kind::AckedLost), 2);
    let undrained = Rules::exactly_once().undrained();
    undrained.check(history.records()).assert_ok();

    history
        .started("k", 3, Attempt::default())
        .finish(Outcome::Done);
    let verdict = undrained.check(history.records());
    assert_eq!(
        verdict.kinds().collect::<Vec<_>>(),
        [Kind::OutOfOrder],
        "{verdict}"
    );
}

#[test]
fn a_message_can_be_ended_without_a_handler() {
    let history = History::new();
    for seq in 1..=3 {
        history.submitted("k", seq);
        history.acked("k", seq);
    }
    history.finished("k", 1, 0, Outcome::DeadLettered);
    history.finished("k", 2, 0, Outcome::Parked);
    history
        .started("k", 3, Attempt::default())
        .finish(Outcome::Done);
    let verdict = Rules::at_least_once().check(history.records());
    verdict.assert_ok();
    assert_eq!(
        (verdict.totals().dead_lettered, verdict.totals().parked),
        (1, 1)
    );
}

#[test]
fn the_bound_of_a_key_is_its_own() {
    let history = History::new();
    for (key, seq) in [("a", 1), ("b", 1), ("a", 2)] {
        history.submitted(key, seq);
        history.acked(key, seq);
    }
    let rules = Rules::exactly_once().undrained();
    rules
        .clone()
        .max_outstanding_per_key(2)
        .check(history.records())
        .assert_ok();
    let verdict = rules.max_outstanding_per_key(1).check(history.records());
    assert_eq!(verdict.count(Kind::BoundExceeded), 1);
    assert_eq!(verdict.violations()[0].message.seq, 2);
}

#[test]
fn a_violation_shows_the_history_of_its_key() {
    let history = History::new();
    for seq in 1..=9 {
        history.submitted("other", seq);
        history.submitted("k", seq);
    }
    for seq in [1, 2, 4, 3, 5] {
        history
            .started("other", seq, Attempt::default())
            .finish(Outcome::Done);
        history
            .started("k", seq, Attempt::default())
            .finish(Outcome::Done);
    }
    let verdict = Rules::exactly_once().undrained().check(history.records());
    assert_eq!(verdict.count(Kind::OutOfOrder), 2, "one for each key");
    let violation = &verdict.violations()[1];
    assert_eq!(violation.what, "started before sequence 3 was finished");
    assert_eq!(&*violation.message.key, "k");
    assert!(
        violation.context.iter().all(|line| line.contains(" k ")),
        "{violation}"
    );
    let marked: Vec<_> = violation
        .context
        .iter()
        .filter(|line| line.starts_with('>'))
        .collect();
    assert_eq!(marked.len(), 1);
    assert!(marked[0].contains("started k 4"), "{violation}");
}

#[test]
fn a_million_records_take_a_moment() {
    let history = History::new();
    for seq in 0..25_000 {
        for key in 0..10 {
            let key: std::sync::Arc<str> = format!("key-{key}").into();
            history.submitted(key.clone(), seq);
            history.acked(key.clone(), seq);
            history
                .started(key, seq, Attempt::default())
                .finish(Outcome::Done);
        }
    }
    let records = history.records();
    assert_eq!(records.len(), 1_000_000);
    let begun = Instant::now();
    Rules::exactly_once().check(records).assert_ok();
    // About 0.3 s when optimised; without optimisation, on a busy machine, still bounded.
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "took {:?}",
        begun.elapsed()
    );
}

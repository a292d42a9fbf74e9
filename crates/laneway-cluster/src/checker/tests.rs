use super::*;
use crate::record::Refusal;

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

/// A good run: a message is extended and delivered, another one is withdrawn. In no fault.
fn good() -> History {
    crate::model::good_history()
}

fn violations(spoil: impl FnOnce(&mut History)) -> Vec<Violation> {
    let mut history = good();
    spoil(&mut history);
    check(&history)
}

fn later(history: &History) -> Timestamp {
    history.ended
}

#[test]
fn a_good_run_is_good() {
    assert_eq!(violations(|_| {}), []);
    assert!(good().starts.len() == 1 && good().said.len() >= 4);
}

#[test]
fn an_accepted_message_that_is_nowhere_is_lost() {
    let found = violations(|history| {
        let mut said = history.said[0].clone();
        said.id = id("nowhere");
        history.said.push(said);
    });
    assert!(matches!(found[..], [Violation::Lost { .. }]), "{found:?}");
}

/// Recovery only on an event: the event was missed, and the message is never begun.
#[test]
fn what_is_due_and_never_begun_is_lost() {
    let found = violations(|history| {
        history.starts.clear();
        history.log.truncate(4);
        history
            .said
            .retain(|said| matches!(said.what, What::Submit { .. }));
    });
    let lost = |violation: &Violation| matches!(violation, Violation::Lost { why, .. } if why.contains("still scheduled"));
    assert!(found.iter().any(lost), "{found:?}");
}

#[test]
fn a_start_before_its_time_is_early() {
    let found = violations(|history| {
        history.starts[0].at = crate::model::run_begins();
    });
    assert!(
        found
            .iter()
            .any(|found| matches!(found, Violation::Early { .. })),
        "{found:?}"
    );
}

#[test]
fn a_start_after_a_yes_is_found() {
    let found = violations(|history| {
        let mut start = history.starts[0].clone();
        (start.id, start.at) = (id("m1"), later(history));
        history.starts.push(start);
    });
    assert!(
        found.contains(&Violation::StartAfterYes { id: id("m1") }),
        "{found:?}"
    );
}

/// A go that a row in Redis led to.
#[test]
fn a_start_that_the_log_has_not_begun_is_found() {
    let found = violations(|history| history.starts[0].attempt = 2);
    let expected = Violation::StartWithoutBegun {
        id: id("m0"),
        attempt: 2,
    };
    assert!(found.contains(&expected), "{found:?}");
    let found = violations(|history| history.starts[0].epoch = 7);
    assert!(
        found
            .iter()
            .any(|found| matches!(found, Violation::StartWithoutBegun { .. }))
    );
}

#[test]
fn epochs_that_run_backwards_are_two_owners() {
    let found = violations(|history| {
        let mut start = history.starts[0].clone();
        start.epoch = 0;
        history.starts.push(start);
    });
    assert!(
        found.contains(&Violation::DoubleOwner { epoch: 0 }),
        "{found:?}"
    );
}

/// An answer on the ack: the append was acknowledged, and did not count. A fact whose sequence was not checked looks the same.
#[test]
fn a_yes_that_does_not_count_is_found() {
    let found = violations(|history| {
        // Landed once more, and before the fact that it follows.
        let last = history.log.len() - 1;
        history.log.swap(last - 1, last);
        for (place, entry) in history.log.iter_mut().enumerate() {
            entry.offset = place as u64;
        }
    });
    assert!(!found.is_empty());
    let found = violations(|history| {
        let mut said = history
            .said
            .iter()
            .rev()
            .find(|said| said.id == id("m1"))
            .cloned()
            .unwrap();
        said.id = id("m0");
        history.said.push(said);
    });
    let expected = Violation::Contradiction {
        id: id("m0"),
        why: "a yes that is not in the log",
    };
    assert!(found.contains(&expected), "{found:?}");
}

#[test]
fn not_found_without_a_barrier_is_a_contradiction() {
    let found = violations(|history| {
        let mut said = history.said[0].clone();
        said.sent = later(history);
        said.answered = later(history);
        said.what = What::LookUp { found: Some(false) };
        history.said.push(said);
    });
    assert!(
        matches!(found[..], [Violation::Contradiction { .. }]),
        "{found:?}"
    );
}

#[test]
fn an_extend_that_was_repeated_is_a_contradiction() {
    let found = violations(|history| {
        let is_extend = |said: &Said| {
            matches!(
                said.what,
                What::Command {
                    verb: Verb::Extend,
                    ..
                }
            )
        };
        history.said.retain(|said| !is_extend(said));
    });
    let expected = Violation::Contradiction {
        id: id("m0"),
        why: "extended more often than it was asked for",
    };
    assert!(found.contains(&expected), "{found:?}");
}

#[test]
fn two_answers_to_one_key_are_a_contradiction() {
    let found = violations(|history| {
        let extend = history.said.iter().find(|said| {
            matches!(
                said.what,
                What::Command {
                    verb: Verb::Extend,
                    ..
                }
            )
        });
        let mut said = extend.cloned().unwrap();
        if let What::Command { told, .. } = &mut said.what {
            *told = Some(Answer::Refused(Refusal::WrongState));
        }
        history.said.push(said);
    });
    let expected = Violation::Contradiction {
        id: id("m0"),
        why: "two answers to one key",
    };
    assert!(found.contains(&expected), "{found:?}");
}

/// The outcome was dropped with its stream: nobody knows that it was delivered, and it is delivered again.
#[test]
fn a_second_start_without_a_fault_is_a_duplicate() {
    let found = violations(|history| {
        let start = history.starts[0].clone();
        history.starts.push(start);
    });
    assert!(
        found.contains(&Violation::Duplicate { id: id("m0") }),
        "{found:?}"
    );
}

#[test]
fn what_is_delivered_and_was_never_seen_is_lost() {
    let found = violations(|history| history.starts.clear());
    assert!(matches!(found[..], [Violation::Lost { .. }]), "{found:?}");
}

#[test]
fn a_run_in_which_everything_errs_proves_nothing() {
    let found = violations(|history| {
        for said in &mut history.said {
            if let What::Submit { told, .. } = &mut said.what {
                *told = SubmitTold::Error;
            }
        }
    });
    assert!(
        found
            .iter()
            .any(|found| matches!(found, Violation::Ailing { .. })),
        "{found:?}"
    );
    let found = violations(|history| {
        let mut said = history.said[0].clone();
        said.member = 4;
        said.what = What::LookUp { found: None };
        history.said.push(said);
    });
    assert!(matches!(found[..], [Violation::Ailing { .. }]), "{found:?}");
}

#[test]
fn a_log_that_was_trimmed_too_early_is_bad() {
    let found = violations(|history| history.left = 3);
    assert!(matches!(found[..], [Violation::BadLog(_)]), "{found:?}");
}

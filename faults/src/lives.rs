//! A life, not a scene: a seeded simulation that lives through everything in random order, against a model,
//! with every promise checked whenever it is opened again.
//!
//! Each [`Subject`] is one thing that lives: a store, or a group. `cargo xtask faults life` lets all of them
//! live that can run on this machine; `--store NAME` only one. A subject draws its plan from dice of its own, which
//! follow from the seed and its name: it lives the same life alone and together with others.
//!
//! # Adding one
//!
//! Write a function from a [`Run`] to a verdict, and name it in [`ALL`]. [`draw`] picks from weighted choices.
//! Where the machine lacks what is needed, answer `file::power::skipped`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::{Rng, RngExt};

use crate::frame::Run;
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "life";
/// What it breaks.
pub const ABOUT: &str =
    "everything in random order, against a model: every promise after every reopen";

/// Something that lives.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// What `--store` calls it.
    pub name: &'static str,
    /// Lets it live.
    pub run: fn(&mut Run) -> Result<Verdict>,
}

/// What an hour of a store must have seen to prove anything.
const REOPENED: u64 = 10_000;
const POWER_CUTS: u64 = 1_000;

/// A full life of a store that was too quiet does not pass. Groups count neither.
fn enough(lived: Verdict, is_full: bool) -> Verdict {
    if !is_full {
        return lived;
    }
    lived
        .at_least("reopened", REOPENED)
        .at_least("power cuts", POWER_CUTS)
}

/// Everything that can live.
pub const ALL: &[Subject] = &[
    Subject {
        name: "file",
        run: crate::file::life::run,
    },
    Subject {
        name: "delay",
        run: crate::delay::life::run,
    },
    Subject {
        name: "nats",
        run: crate::group::life::run::<crate::nats::Nats>,
    },
    Subject {
        name: "kafka",
        run: crate::group::life::run::<crate::kafka::Kafka>,
    },
];

/// Lets one live, or all.
///
/// # Errors
///
/// If there is none of that name, or a life could not be judged.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let chosen: Vec<_> = ALL
        .iter()
        .filter(|subject| run.only().is_none_or(|only| only == subject.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = ALL.iter().map(|subject| subject.name).collect();
        bail!("there is no such life; choose from {}", names.join(", "));
    }
    let mut verdict = Verdict::new();
    for subject in chosen {
        run.throw_anew(subject.name);
        run.note(format_args!("the life of {}", subject.name));
        let lived = (subject.run)(run).with_context(|| format!("the life of {}", subject.name))?;
        let lived = enough(lived, run.is_full());
        verdict = verdict.and(subject.name, lived);
    }
    Ok(verdict)
}

/// How long each kind of step takes.
#[derive(Debug, Default)]
pub struct Times(BTreeMap<String, (u32, Duration)>);

impl Times {
    /// One more of a kind.
    pub fn add(&mut self, step: impl fmt::Debug, took: Duration) {
        let (count, all) = self.0.entry(format!("{step:?}")).or_default();
        *count += 1;
        *all += took;
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("steps and their milliseconds:")?;
        for (step, (count, all)) in &self.0 {
            write!(f, " {step} {count} x {}", (*all / *count).as_millis())?;
        }
        Ok(())
    }
}

/// One of some weighted choices.
///
/// # Panics
///
/// If nothing has any weight.
pub fn draw<'a, T>(dice: &mut impl Rng, choices: &'a [(u32, T)]) -> &'a T {
    let all: u32 = choices.iter().map(|(weight, _)| weight).sum();
    let mut at = dice.random_range(0..all);
    for (weight, choice) in choices {
        if at < *weight {
            return choice;
        }
        at -= weight;
    }
    &choices[choices.len() - 1].1
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn what_has_no_weight_is_never_drawn_and_all_else_is() {
        let mut dice = StdRng::seed_from_u64(1);
        let choices = [(1, 'a'), (0, 'b'), (3, 'c')];
        let drawn: Vec<_> = (0..200).map(|_| *draw(&mut dice, &choices)).collect();
        assert!(drawn.contains(&'a') && drawn.contains(&'c'));
        assert!(!drawn.contains(&'b'));
    }
}

//! What a benchmark is made of, and how it is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use runs::Progress;

use crate::results::{ContenderResult, Figures, Results, ScenarioResult};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A first impression within seconds.
    Quick,
    /// What is published.
    Full,
}

impl Scale {
    /// One of two values.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// What a scenario measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Events per second: more is better.
    PerSecond,
    /// Seconds until all is done: less is better.
    Seconds,
    /// Bytes of memory: less is better.
    Bytes,
}

impl Unit {
    /// Which way to look at it.
    pub(crate) fn better(self) -> &'static str {
        match self {
            Unit::PerSecond => "more is better",
            Unit::Seconds | Unit::Bytes => "less is better",
        }
    }
}

/// One measurement of one contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub(crate) value: f64,
    pub(crate) counts: Vec<(&'static str, u64)>,
}

impl Sample {
    /// So many events in that time, for [`Unit::PerSecond`].
    #[must_use]
    pub fn rate(events: usize, elapsed: Duration) -> Self {
        Self::value(events as f64 / elapsed.as_secs_f64())
    }

    /// A time, for [`Unit::Seconds`].
    #[must_use]
    pub fn time(elapsed: Duration) -> Self {
        Self::value(elapsed.as_secs_f64())
    }

    /// A number of bytes, for [`Unit::Bytes`].
    #[must_use]
    pub fn bytes(bytes: f64) -> Self {
        Self::value(bytes)
    }

    fn value(value: f64) -> Self {
        Self {
            value,
            counts: Vec::new(),
        }
    }

    /// Adds something that was counted along the way, such as order violations. Counts are summed
    /// over all rounds.
    #[must_use]
    pub fn count(mut self, name: &'static str, count: u64) -> Self {
        self.counts.push((name, count));
        self
    }
}

type Measurement = Pin<Box<dyn Future<Output = Result<Sample>> + Send>>;

/// One way to do the work of a scenario.
struct Contender {
    name: &'static str,
    turns: Turns,
    measure: Box<dyn Fn() -> Measurement>,
}

/// How often a contender is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    EveryRound,
    Once,
}

/// A piece of work, and those who do it.
pub struct Scenario {
    name: &'static str,
    about: String,
    unit: Unit,
    contenders: Vec<Contender>,
    reference: Option<&'static str>,
    rounds: Option<usize>,
    deadline: Duration,
}

impl Scenario {
    /// Work without contenders yet. `about` goes into the table and above the chart.
    #[must_use]
    pub fn new(name: &'static str, about: impl Into<String>, unit: Unit) -> Self {
        Self {
            name,
            about: about.into(),
            unit,
            contenders: Vec::new(),
            reference: None,
            rounds: None,
            deadline: Duration::from_mins(3),
        }
    }

    /// Adds a contender. It is measured as a task on a tokio runtime of its own, fresh each time,
    /// with as many workers as the machine has cores. It sets itself up, starts its own clock, and
    /// stops it when the last event has been handled.
    #[must_use]
    pub fn contender<F>(self, name: &'static str, measure: impl Fn() -> F + 'static) -> Self
    where
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        self.with(name, Turns::EveryRound, measure)
    }

    /// Adds a contender that is measured in the first round only, and without a warm-up: one that
    /// takes minutes where the others take seconds.
    #[must_use]
    pub fn contender_once<F>(self, name: &'static str, measure: impl Fn() -> F + 'static) -> Self
    where
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        self.with(name, Turns::Once, measure)
    }

    fn with<F>(
        mut self,
        name: &'static str,
        turns: Turns,
        measure: impl Fn() -> F + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        self.contenders.push(Contender {
            name,
            turns,
            measure: Box::new(move || Box::pin(measure())),
        });
        self
    }

    /// Ratios are to this contender. A bound is a contender too: one that measures the shortest time
    /// in which the work could be done.
    #[must_use]
    pub fn reference(mut self, contender: &'static str) -> Self {
        self.reference = Some(contender);
        self
    }

    /// Measured rounds, where the default (3 quick, 7 full) takes too long.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = Some(rounds);
        self
    }

    /// The time one measurement may take (default 3 minutes). A contender that takes longer is out.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A benchmark: scenarios, and the figures that are drawn from them.
#[derive(Debug)]
pub struct Bench {
    name: &'static str,
    scale: Scale,
    scenarios: Vec<Scenario>,
    figures: fn(&Results, &mut Figures),
}

impl Bench {
    /// A benchmark without figures yet.
    #[must_use]
    pub fn new(name: &'static str, scale: Scale, scenarios: Vec<Scenario>) -> Self {
        Self {
            name,
            scale,
            scenarios,
            figures: |_, _| {},
        }
    }

    /// How to draw the figures of `--json` from the results.
    #[must_use]
    pub fn figures(mut self, figures: fn(&Results, &mut Figures)) -> Self {
        self.figures = figures;
        self
    }

    /// Leaves only one scenario, or those whose names begin with this and a colon.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn only(mut self, scenario: &str) -> Result<Self> {
        let names: Vec<&str> = self.scenarios.iter().map(|known| known.name).collect();
        let is_meant = |name: &str| {
            let rest = name.strip_prefix(scenario);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        if !names.iter().any(|name| is_meant(name)) {
            bail!(
                "there is no scenario {scenario:?} in {}; choose from {}",
                self.name,
                names.join(", ")
            );
        }
        self.scenarios.retain(|known| is_meant(known.name));
        Ok(self)
    }

    /// Measures everything. A contender that fails is out; the others go on.
    #[must_use]
    pub fn run(&self, progress: &Progress) -> Results {
        progress.begin(
            self.scenarios
                .iter()
                .map(|s| s.measurements(self.scale))
                .sum(),
        );
        let scenarios = self
            .scenarios
            .iter()
            .map(|scenario| scenario.run(self.scale, progress))
            .collect();
        progress.end();
        let mut results = Results {
            bench: self.name,
            scenarios,
            figures: Figures::default(),
        };
        let mut figures = Figures::default();
        (self.figures)(&results, &mut figures);
        results.figures = figures;
        results
    }
}

impl Scenario {
    fn rounds_at(&self, scale: Scale) -> usize {
        self.rounds.unwrap_or(scale.pick(3, 7))
    }

    /// Full runs have a round before the first that counts: caches, pages and clocks settle.
    fn warm_ups(scale: Scale) -> usize {
        scale.pick(0, 1)
    }

    fn measurements(&self, scale: Scale) -> usize {
        self.contenders
            .iter()
            .map(|contender| match contender.turns {
                Turns::Once => 1,
                Turns::EveryRound => Self::warm_ups(scale) + self.rounds_at(scale),
            })
            .sum()
    }

    fn run(&self, scale: Scale, progress: &Progress) -> ScenarioResult {
        let mut results: Vec<ContenderResult> = self
            .contenders
            .iter()
            .map(|contender| ContenderResult::new(contender.name))
            .collect();
        let warm_ups = Self::warm_ups(scale);
        let rounds = warm_ups + self.rounds_at(scale);
        for round in 0..rounds {
            for turn in 0..self.contenders.len() {
                // Another one begins in every round: nobody always runs in the wake of the same one.
                let number = (turn + round) % self.contenders.len();
                let (contender, result) = (&self.contenders[number], &mut results[number]);
                let counts = match contender.turns {
                    Turns::Once if round == 0 => true,
                    Turns::Once => continue,
                    Turns::EveryRound => round >= warm_ups,
                };
                progress.step(&format!(
                    "{} {} round {} of {rounds}",
                    self.name,
                    contender.name,
                    round + 1
                ));
                if result.error.is_none() {
                    match contender.measure(self.deadline) {
                        Ok(sample) if counts => result.add(sample),
                        Ok(_) => {}
                        Err(error) => result.error = Some(format!("{error:#}")),
                    }
                }
            }
        }
        ScenarioResult {
            name: self.name,
            about: self.about.clone(),
            unit: self.unit,
            reference: self.reference,
            contenders: results,
        }
    }
}

impl Contender {
    fn measure(&self, deadline: Duration) -> Result<Sample> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("cannot start a tokio runtime")?;
        let measurement = (self.measure)();
        let outcome = runtime.block_on(async {
            // As a task, so that all of it runs on the workers and this thread stays out of the way.
            tokio::time::timeout(deadline, tokio::spawn(measurement)).await
        });
        // What a contender leaves behind must not run into the next one's measurement.
        runtime.shutdown_timeout(Duration::from_secs(5));
        match outcome {
            Ok(Ok(sample)) => sample,
            Ok(Err(panic)) => bail!("{panic}"),
            Err(_) => bail!("not done after {deadline:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use anyhow::bail;
    use runs::Progress;

    use super::{Bench, Sample, Scale, Scenario, Unit};
    use crate::results::Results;

    fn run(scale: Scale, scenario: Scenario) -> Results {
        Bench::new("test", scale, vec![scenario]).run(&Progress::hidden())
    }

    #[test]
    fn contenders_take_turns_and_begin_in_turn() {
        let order = Arc::new(Mutex::new(String::new()));
        let log = |name: char| {
            let order = Arc::clone(&order);
            move || {
                order.lock().unwrap().push(name);
                async { Ok(Sample::time(Duration::from_secs(1))) }
            }
        };
        let scenario = Scenario::new("s", "", Unit::Seconds)
            .contender("a", log('a'))
            .contender("b", log('b'))
            .contender("c", log('c'));
        let _ = run(Scale::Quick, scenario);
        assert_eq!(*order.lock().unwrap(), "abcbcacab");
    }

    #[test]
    fn a_full_run_has_a_round_that_does_not_count() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let scenario = Scenario::new("s", "", Unit::Seconds)
            .rounds(2)
            .contender("a", move || {
                let call = counter.fetch_add(1, Ordering::Relaxed) + 1;
                async move { Ok(Sample::time(Duration::from_secs(call as u64))) }
            });
        let results = run(Scale::Full, scenario);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert_eq!(results.median("s", "a"), Some(2.5));
    }

    #[test]
    fn one_that_takes_minutes_is_measured_once() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let scenario = Scenario::new("s", "", Unit::Seconds).contender_once("slow", move || {
            counter.fetch_add(1, Ordering::Relaxed);
            async { Ok(Sample::time(Duration::from_mins(2))) }
        });
        let results = run(Scale::Full, scenario);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(results.median("s", "slow"), Some(120.0));
    }

    #[test]
    fn a_contender_that_fails_or_panics_is_out_and_the_others_go_on() {
        let scenario = Scenario::new("s", "", Unit::Seconds)
            .contender("fails", || async { bail!("no luck") })
            .contender("panics", || async { panic!("no luck either") })
            .contender("works", || async {
                Ok(Sample::time(Duration::from_secs(1)))
            });
        let results = run(Scale::Quick, scenario);
        assert_eq!(results.median("s", "works"), Some(1.0));
        assert_eq!(results.median("s", "fails"), None);
        let errors: Vec<_> = results.errors().map(|(_, _, error)| error).collect();
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0], "no luck");
        assert!(errors[1].contains("no luck either"), "{errors:?}");
    }

    #[test]
    fn a_contender_that_hangs_is_out_at_its_deadline() {
        let scenario = Scenario::new("s", "", Unit::Seconds)
            .deadline(Duration::from_millis(50))
            .contender("hangs", std::future::pending);
        let results = run(Scale::Quick, scenario);
        let errors: Vec<_> = results.errors().collect();
        assert_eq!(errors, [("s", "hangs", "not done after 50ms")]);
    }

    #[test]
    fn counts_are_summed_over_the_rounds() {
        let scenario = Scenario::new("s", "", Unit::Seconds).contender("a", || async {
            Ok(Sample::time(Duration::from_secs(1)).count("violations", 2))
        });
        let results = run(Scale::Quick, scenario);
        assert_eq!(results.count("s", "a", "violations"), Some(6));
    }
}

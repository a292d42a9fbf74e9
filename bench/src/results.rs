//! What was measured, and medians and ratios of it.

use std::collections::BTreeMap;

pub use runs::Figures;

use crate::frame::{Sample, Unit};

/// All that a run has measured.
#[derive(Debug)]
pub struct Results {
    pub(crate) bench: &'static str,
    pub(crate) scenarios: Vec<ScenarioResult>,
    pub(crate) figures: Figures,
}

/// One scenario's part.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    pub(crate) name: &'static str,
    pub(crate) about: String,
    pub(crate) unit: Unit,
    pub(crate) reference: Option<&'static str>,
    pub(crate) contenders: Vec<ContenderResult>,
}

/// One contender's part.
#[derive(Debug)]
pub(crate) struct ContenderResult {
    pub(crate) name: &'static str,
    /// One value per round, sorted.
    values: Vec<f64>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// Why it is out.
    pub(crate) error: Option<String>,
}

impl Results {
    /// The median of a contender's rounds. None if it failed or does not exist.
    #[must_use]
    pub fn median(&self, scenario: &str, contender: &str) -> Option<f64> {
        self.scenario(scenario)?.contender(contender)?.median()
    }

    /// How many times the median of `other` the median of `contender` is.
    #[must_use]
    pub fn ratio(&self, scenario: &str, contender: &str, other: &str) -> Option<f64> {
        Some(self.median(scenario, contender)? / self.median(scenario, other)?)
    }

    /// Something that a contender counted, over all its rounds.
    #[must_use]
    pub fn count(&self, scenario: &str, contender: &str, name: &str) -> Option<u64> {
        let contender = self.scenario(scenario)?.contender(contender)?;
        contender.counts.get(name).copied()
    }

    /// How many rounds of a contender count.
    #[must_use]
    pub fn rounds(&self, scenario: &str, contender: &str) -> Option<usize> {
        let contender = self.scenario(scenario)?.contender(contender)?;
        Some(contender.values.len()).filter(|rounds| *rounds > 0)
    }

    /// Contenders that failed: scenario, contender, and why.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str, &str)> {
        self.scenarios.iter().flat_map(|scenario| {
            scenario.contenders.iter().filter_map(|contender| {
                Some((scenario.name, contender.name, contender.error.as_deref()?))
            })
        })
    }

    /// `{"bench": NAME, "figures": {...}}`, on one line.
    #[must_use]
    pub fn json(&self) -> String {
        self.figures.json("bench", self.bench)
    }

    fn scenario(&self, name: &str) -> Option<&ScenarioResult> {
        self.scenarios.iter().find(|scenario| scenario.name == name)
    }
}

impl ScenarioResult {
    pub(crate) fn contender(&self, name: &str) -> Option<&ContenderResult> {
        self.contenders
            .iter()
            .find(|contender| contender.name == name)
    }

    /// How many times the reference a contender is. None for the reference itself.
    pub(crate) fn ratio(&self, contender: &ContenderResult) -> Option<f64> {
        let reference = self.reference.filter(|name| *name != contender.name)?;
        Some(contender.median()? / self.contender(reference)?.median()?)
    }
}

impl ContenderResult {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            values: Vec::new(),
            counts: BTreeMap::new(),
            error: None,
        }
    }

    pub(crate) fn add(&mut self, sample: Sample) {
        let place = self.values.partition_point(|value| *value < sample.value);
        self.values.insert(place, sample.value);
        for (name, count) in sample.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// None if it failed in any round: half a contender proves nothing.
    pub(crate) fn median(&self) -> Option<f64> {
        let middle = self.values.len() / 2;
        match (self.values.len() % 2, &self.error) {
            (_, Some(_)) => None,
            (1, None) => self.values.get(middle).copied(),
            (_, None) => Some(f64::midpoint(
                *self.values.get(middle.checked_sub(1)?)?,
                *self.values.get(middle)?,
            )),
        }
    }

    /// The smallest and the largest value.
    pub(crate) fn spread(&self) -> Option<(f64, f64)> {
        Some((*self.values.first()?, *self.values.last()?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ContenderResult;
    use crate::frame::Sample;

    fn contender(seconds: &[u64]) -> ContenderResult {
        let mut contender = ContenderResult::new("a");
        for &second in seconds {
            contender.add(Sample::time(Duration::from_secs(second)));
        }
        contender
    }

    #[test]
    fn the_median_is_the_middle_one_or_between_the_middle_two() {
        assert_eq!(contender(&[]).median(), None);
        assert_eq!(contender(&[7]).median(), Some(7.0));
        assert_eq!(contender(&[9, 1, 2]).median(), Some(2.0));
        assert_eq!(contender(&[9, 1, 2, 5]).median(), Some(3.5));
        assert_eq!(contender(&[9, 1, 2]).spread(), Some((1.0, 9.0)));
    }

    #[test]
    fn a_contender_that_failed_has_no_median() {
        let mut failed = contender(&[1, 2, 3]);
        failed.error = Some("gone".into());
        assert_eq!(failed.median(), None);
    }
}

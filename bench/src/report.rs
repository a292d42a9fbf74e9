//! The table of a run, for the terminal and for `bench/results/`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use runs::Medium;

use crate::frame::Unit;
use crate::results::{ContenderResult, Results, ScenarioResult};
use crate::{chart, machine};

/// The table for a terminal.
#[must_use]
pub fn table(results: &Results) -> String {
    render(results, Medium::Terminal)
}

/// Writes the table and the chart of a full run to `bench/results/`, and says where.
///
/// # Errors
///
/// If the files cannot be written.
pub fn save(results: &Results, command: &str) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let file = |extension: &str| folder.join(results.bench).with_extension(extension);
    let (page, picture) = (file("md"), file("svg"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (path, text) in [
        (&page, markdown(results, command)),
        (&picture, chart::draw(results)?),
    ] {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(vec![page, picture])
}

fn markdown(results: &Results, command: &str) -> String {
    let mut text = format!("# {}\n\n", results.bench);
    let _ = writeln!(text, "`{command}` on {}\n", machine::describe());
    for scenario in &results.scenarios {
        let _ = writeln!(text, "- **{}**: {}", scenario.name, scenario.about);
    }
    let _ = writeln!(text, "\n{}\n", render(results, Medium::Markdown));
    let _ = writeln!(text, "![chart]({}.svg)", results.bench);
    let figures: Vec<_> = results.figures.iter().collect();
    if !figures.is_empty() {
        let _ = writeln!(text, "\n| figure | value |\n|---|---|");
        for (name, value) in figures {
            let _ = writeln!(text, "| `{name}` | {value} |");
        }
    }
    text
}

fn render(results: &Results, medium: Medium) -> String {
    let header = ["scenario", "contender", "median", "spread", "ratio", ""];
    let rows = results.scenarios.iter().flat_map(|scenario| {
        let numbered = scenario.contenders.iter().enumerate();
        numbered.map(move |(number, contender)| {
            let name = if number == 0 { scenario.name } else { "" };
            [
                name.to_owned(),
                contender.name.to_owned(),
                shown(scenario.unit, contender.median()),
                spread(scenario.unit, contender),
                ratio(scenario, contender),
                remarks(contender),
            ]
        })
    });
    runs::table(medium, header, 2..=4, rows)
}

fn shown(unit: Unit, value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| unit.show(value))
}

/// From the smallest to the largest value.
fn spread(unit: Unit, contender: &ContenderResult) -> String {
    match (contender.median(), contender.spread()) {
        (Some(_), Some((min, max))) => format!("{} – {}", unit.show(min), unit.show(max)),
        _ => String::new(),
    }
}

pub(crate) fn ratio(scenario: &ScenarioResult, contender: &ContenderResult) -> String {
    match (scenario.ratio(contender), scenario.reference) {
        (Some(ratio), Some(reference)) => format!("{ratio:.2} × {reference}"),
        _ => String::new(),
    }
}

fn remarks(contender: &ContenderResult) -> String {
    let mut remarks: Vec<String> = contender
        .counts
        .iter()
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    remarks.extend(contender.error.iter().map(|error| format!("out: {error}")));
    remarks.join(", ")
}

impl Unit {
    /// A value with three digits and a unit that suits it.
    pub(crate) fn show(self, value: f64) -> String {
        let steps: &[(f64, &str)] = match self {
            Unit::PerSecond => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
            Unit::Seconds => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
            Unit::Bytes => &[
                (1_073_741_824.0, "GiB"),
                (1_048_576.0, "MiB"),
                (1024.0, "KiB"),
                (1.0, "B"),
            ],
        };
        let smallest = steps[steps.len() - 1];
        let (size, name) = steps
            .iter()
            .copied()
            .find(|(size, _)| value >= *size)
            .unwrap_or(smallest);
        let scaled = value / size;
        let decimals = match scaled {
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        format!("{scaled:.decimals$} {name}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{markdown, table};
    use crate::frame::{Bench, Sample, Scale, Scenario, Unit};
    use crate::results::Results;
    use runs::Progress;

    fn results() -> Results {
        let scenario = Scenario::new("waiting", "handler waits", Unit::Seconds)
            .contender("bound", || async {
                Ok(Sample::time(Duration::from_secs(2)))
            })
            .contender("ours", || async {
                Ok(Sample::time(Duration::from_millis(2100)).count("order_violations", 0))
            })
            .contender("peer", || async { anyhow::bail!("gave up") })
            .reference("bound");
        Bench::new("test", Scale::Quick, vec![scenario])
            .figures(|results, figures| {
                figures.set("over_bound", results.ratio("waiting", "ours", "bound"));
            })
            .run(&Progress::hidden())
    }

    #[test]
    fn the_table_has_medians_ratios_counts_and_reasons() {
        let text = table(&results());
        for part in [
            "2.10 s",
            "1.05 × bound",
            "order_violations: 0",
            "out: gave up",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn the_page_says_how_and_where_it_was_measured() {
        let text = markdown(&results(), "cargo xtask bench test");
        for part in [
            "`cargo xtask bench test` on 2",
            " cores",
            "rustc",
            "| `over_bound` | 1.05 |",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn json_is_one_line() {
        assert_eq!(
            results().json(),
            r#"{"bench":"test","figures":{"over_bound":1.05}}"#
        );
    }

    #[test]
    fn values_have_three_digits() {
        assert_eq!(Unit::PerSecond.show(8_312_345.0), "8.31 M/s");
        assert_eq!(Unit::PerSecond.show(999_600.0), "1000 k/s");
        assert_eq!(Unit::Seconds.show(0.0123), "12.3 ms");
        assert_eq!(Unit::Seconds.show(106.8), "107 s");
        assert_eq!(Unit::Bytes.show(318.0), "318 B");
        assert_eq!(Unit::Bytes.show(0.0), "0.00 B");
    }
}

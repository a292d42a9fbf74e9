//! The picture of a run: one panel per scenario, one bar per contender, drawn as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::machine;
use crate::report::ratio;
use crate::results::{ContenderResult, Results, ScenarioResult};

const WIDTH: i32 = 920;
const MARGIN: i32 = 28;
/// Where bars begin: names are to the left.
const BARS_FROM: i32 = 210;
/// Where the longest bar ends: values are to the right.
const BARS_TO: i32 = 620;
const HEAD: i32 = 76;
const PANEL_TITLE: i32 = 40;
const BAR: i32 = 24;
const BAR_STEP: i32 = 36;
const PANEL_GAP: i32 = 20;
const FOOTER: i32 = 30;

const INK: RGBColor = RGBColor(31, 41, 55);
const FAINT: RGBColor = RGBColor(107, 114, 128);
const RULE: RGBColor = RGBColor(229, 231, 235);
/// What others are compared with.
const REFERENCE: RGBColor = RGBColor(156, 163, 175);
/// Told apart by people with any kind of colour vision.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// A size and a colour.
#[derive(Clone, Copy)]
struct Font(i32, RGBColor);

const HEADING: Font = Font(26, INK);
const TITLE: Font = Font(15, INK);
const BODY: Font = Font(14, INK);
const NOTE: Font = Font(13, FAINT);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all scenarios, one below the other.
///
/// # Errors
///
/// If the drawing library fails; it has no reason to.
pub fn draw(results: &Results) -> Result<String> {
    let height = HEAD + FOOTER + results.scenarios.iter().map(panel_height).sum::<i32>();
    let size = (unsigned(WIDTH)?, unsigned(height)?);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        left(&canvas, (MARGIN, 34), results.bench, HEADING)?;
        left(&canvas, (MARGIN, 60), &machine::describe(), NOTE)?;
        let colours = Colours::of(results);
        let mut top = HEAD;
        for scenario in &results.scenarios {
            panel(&canvas, top, scenario, &colours)?;
            top += panel_height(scenario);
        }
        let legend = "Bars: median of the rounds. Thin lines: smallest and largest.";
        left(&canvas, (MARGIN, top + FOOTER / 2), legend, NOTE)?;
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}

fn panel_height(scenario: &ScenarioResult) -> i32 {
    let bars = i32::try_from(scenario.contenders.len()).unwrap_or(i32::MAX / BAR_STEP);
    PANEL_TITLE + bars * BAR_STEP + PANEL_GAP
}

fn panel(
    canvas: &Canvas<'_>,
    top: i32,
    scenario: &ScenarioResult,
    colours: &Colours,
) -> Result<()> {
    let rule = [(MARGIN, top), (WIDTH - MARGIN, top)];
    line(canvas, rule, RULE, 1)?;
    let title = format!("{}: {}", scenario.name, scenario.about);
    left(canvas, (MARGIN, top + PANEL_TITLE / 2), &title, TITLE)?;
    right(
        canvas,
        (WIDTH - MARGIN, top + PANEL_TITLE / 2),
        scenario.unit.better(),
        NOTE,
    )?;

    let longest = scenario
        .contenders
        .iter()
        .filter_map(ContenderResult::spread)
        .fold(0.0, |longest: f64, (_, max)| longest.max(max));
    let x = |value: f64| BARS_FROM + pixels(value / longest * f64::from(BARS_TO - BARS_FROM));

    let mut middle = top + PANEL_TITLE + BAR_STEP / 2;
    for contender in &scenario.contenders {
        right(canvas, (BARS_FROM - 12, middle), contender.name, BODY)?;
        if let (Some(median), Some((min, max))) = (contender.median(), contender.spread()) {
            let colour = colours.get(contender.name);
            let bar = [(BARS_FROM, middle - BAR / 2), (x(median), middle + BAR / 2)];
            canvas
                .draw(&Rectangle::new(bar, colour.filled()))
                .map_err(failed)?;
            line(canvas, [(x(min), middle), (x(max), middle)], INK, 1)?;
            for end in [x(min), x(max)] {
                line(canvas, [(end, middle - 4), (end, middle + 4)], INK, 1)?;
            }
            let value = scenario.unit.show(median);
            let beside = x(median.max(max)) + 12;
            left(canvas, (beside, middle), &value, BODY)?;
            let ratio = ratio(scenario, contender);
            right(canvas, (WIDTH - MARGIN, middle), &ratio, NOTE)?;
        } else {
            let why = contender.error.as_deref().unwrap_or("not measured");
            left(canvas, (BARS_FROM, middle), why, NOTE)?;
        }
        middle += BAR_STEP;
    }
    Ok(())
}

/// One colour per contender, the same in all panels. What others are compared with anywhere is grey.
struct Colours(Vec<(&'static str, RGBColor)>);

impl Colours {
    fn of(results: &Results) -> Self {
        let references: Vec<_> = results.scenarios.iter().map(|s| s.reference).collect();
        let mut free = COLOURS.iter().cycle();
        let mut given: Vec<(&str, RGBColor)> = Vec::new();
        for contender in results.scenarios.iter().flat_map(|s| &s.contenders) {
            if given.iter().any(|(name, _)| *name == contender.name) {
                continue;
            }
            let colour = if references.contains(&Some(contender.name)) {
                REFERENCE
            } else {
                *free.next().unwrap_or(&REFERENCE)
            };
            given.push((contender.name, colour));
        }
        Self(given)
    }

    fn get(&self, name: &str) -> RGBColor {
        let given = self.0.iter().find(|(other, _)| *other == name);
        given.map_or(REFERENCE, |(_, colour)| *colour)
    }
}

fn line(canvas: &Canvas<'_>, ends: [(i32, i32); 2], colour: RGBColor, width: u32) -> Result<()> {
    let style = colour.stroke_width(width);
    canvas.draw(&PathElement::new(ends, style)).map_err(failed)
}

/// Text that begins at a point.
fn left(canvas: &Canvas<'_>, at: (i32, i32), text: &str, font: Font) -> Result<()> {
    write(canvas, at, text, font, HPos::Left)
}

/// Text that ends at a point.
fn right(canvas: &Canvas<'_>, at: (i32, i32), text: &str, font: Font) -> Result<()> {
    write(canvas, at, text, font, HPos::Right)
}

fn write(
    canvas: &Canvas<'_>,
    at: (i32, i32),
    text: &str,
    Font(size, colour): Font,
    anchor: HPos,
) -> Result<()> {
    let style = TextStyle::from(("sans-serif", size).into_font())
        .color(&colour)
        .pos(Pos::new(anchor, VPos::Center));
    canvas.draw(&Text::new(text, at, style)).map_err(failed)
}

/// Plotters' errors borrow the canvas, so they cannot be handed up as they are.
fn failed(error: impl std::error::Error) -> anyhow::Error {
    anyhow!("cannot draw the chart: {error}")
}

fn unsigned(pixels: i32) -> Result<u32> {
    u32::try_from(pixels).map_err(|_| anyhow!("the chart would be {pixels} pixels high"))
}

/// Values are scaled to the width of the picture before this, so nothing is cut off.
#[expect(clippy::cast_possible_truncation, reason = "scaled to the picture")]
fn pixels(length: f64) -> i32 {
    length.round() as i32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::draw;
    use crate::frame::{Bench, Sample, Scale, Scenario, Unit};
    use runs::Progress;

    fn chart(scenario: Scenario) -> String {
        let bench = Bench::new("test", Scale::Quick, vec![scenario]);
        draw(&bench.run(&Progress::hidden())).expect("a chart")
    }

    #[test]
    fn every_contender_is_there_with_its_value_or_the_reason_why_it_has_none() {
        let svg = chart(
            Scenario::new("waiting", "1 < 2", Unit::Seconds)
                .contender("bound", || async {
                    Ok(Sample::time(Duration::from_secs(2)))
                })
                .contender("peer", || async { anyhow::bail!("gave up") })
                .reference("bound"),
        );
        for part in ["<svg", "1 &lt; 2", "bound", "2.00 s", "peer", "gave up"] {
            assert!(svg.contains(part), "{part} is missing in\n{svg}");
        }
    }

    #[test]
    fn a_chart_of_nothing_and_of_zero_can_be_drawn() {
        let nothing = chart(Scenario::new("empty", "", Unit::Bytes));
        assert!(nothing.contains("empty"));
        let zero = Scenario::new("zero", "", Unit::Bytes)
            .contender("nobody", || async { Ok(Sample::bytes(0.0)) });
        assert!(chart(zero).contains("0.00 B"));
    }
}

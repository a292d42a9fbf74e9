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
const TITLE: i32 = 76;
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

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all scenarios, one below the other.
///
/// # Errors
///
/// If the drawing library fails; it has no reason to.
pub fn draw(results: &Results) -> Result<String> {
    let height = TITLE + FOOTER + results.scenarios.iter().map(panel_height).sum::<i32>();
    let size = (unsigned(WIDTH)?, unsigned(height)?);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        write(&canvas, (MARGIN, 34), results.bench, 26, INK, HPos::Left)?;
        write(
            &canvas,
            (MARGIN, 60),
            &machine::describe(),
            13,
            FAINT,
            HPos::Left,
        )?;
        let colours = Colours::of(results);
        let mut top = TITLE;
        for scenario in &results.scenarios {
            panel(&canvas, top, scenario, &colours)?;
            top += panel_height(scenario);
        }
        let legend = "Bars: median of the rounds. Thin lines: smallest and largest.";
        write(
            &canvas,
            (MARGIN, top + FOOTER / 2),
            legend,
            12,
            FAINT,
            HPos::Left,
        )?;
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
    write(
        canvas,
        (MARGIN, top + PANEL_TITLE / 2),
        &title,
        15,
        INK,
        HPos::Left,
    )?;

    let longest = scenario
        .contenders
        .iter()
        .filter_map(ContenderResult::spread)
        .fold(0.0, |longest: f64, (_, max)| longest.max(max));
    let x = |value: f64| BARS_FROM + pixels(value / longest * f64::from(BARS_TO - BARS_FROM));

    let mut middle = top + PANEL_TITLE + BAR_STEP / 2;
    for contender in &scenario.contenders {
        write(
            canvas,
            (BARS_FROM - 12, middle),
            contender.name,
            14,
            INK,
            HPos::Right,
        )?;
        if let (Some(median), Some((min, max))) = (contender.median(), contender.spread()) {
            let colour = match scenario.reference {
                Some(reference) if reference == contender.name => REFERENCE,
                _ => colours.get(contender.name),
            };
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
            write(canvas, (beside, middle), &value, 14, INK, HPos::Left)?;
            let ratio = ratio(scenario, contender);
            write(
                canvas,
                (WIDTH - MARGIN, middle),
                &ratio,
                13,
                FAINT,
                HPos::Right,
            )?;
        } else {
            let why = contender.error.as_deref().unwrap_or("not measured");
            write(canvas, (BARS_FROM, middle), why, 13, FAINT, HPos::Left)?;
        }
        middle += BAR_STEP;
    }
    Ok(())
}

/// One colour per contender, the same in all panels.
struct Colours(Vec<&'static str>);

impl Colours {
    fn of(results: &Results) -> Self {
        let mut names = Vec::new();
        for scenario in &results.scenarios {
            for contender in &scenario.contenders {
                if !names.contains(&contender.name) {
                    names.push(contender.name);
                }
            }
        }
        Self(names)
    }

    fn get(&self, name: &str) -> RGBColor {
        let number = self.0.iter().position(|other| *other == name).unwrap_or(0);
        COLOURS[number % COLOURS.len()]
    }
}

fn line(canvas: &Canvas<'_>, ends: [(i32, i32); 2], colour: RGBColor, width: u32) -> Result<()> {
    let style = colour.stroke_width(width);
    canvas.draw(&PathElement::new(ends, style)).map_err(failed)
}

fn write(
    canvas: &Canvas<'_>,
    at: (i32, i32),
    text: &str,
    size: i32,
    colour: RGBColor,
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

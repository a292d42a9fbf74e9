//! All measurements, in rounds: each round visits every engine, so that a busy moment of the
//! machine hits all alike, and the median drops it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::disk;
use crate::engine::Choice;

/// Figures by engine and name, a value per round.
type Figures = BTreeMap<(usize, String), Vec<f64>>;

pub(crate) fn run(
    directory: &Path,
    rounds: usize,
    records: u64,
    engines: &[Choice],
    only: &[String],
) -> Result<()> {
    let all: Vec<_> = Choice::value_variants()
        .iter()
        .filter(|engine| **engine != Choice::FjallUnsynced)
        .copied()
        .collect();
    let engines = if engines.is_empty() { &all } else { engines };
    let wanted = |what: &str| only.is_empty() || only.iter().any(|only| only == what);
    let mut figures = Figures::new();
    for round in 0..rounds {
        for (position, engine) in engines.iter().enumerate() {
            eprintln!("round {} of {rounds}: {}", round + 1, engine.name());
            let mut note = |name: &str, value: f64| {
                figures
                    .entry((position, name.to_owned()))
                    .or_default()
                    .push(value);
            };
            if wanted("appends") {
                appends(*engine, directory, &mut note)?;
            }
            // The bare files are floors for appends only.
            if matches!(engine, Choice::File | Choice::FileZeroed) {
                continue;
            }
            if wanted("fill") {
                life(*engine, directory, records, &mut note)?;
            }
            if wanted("churn") {
                let (all, keep) = (records.to_string(), (records / 10).to_string());
                let args = ["--records", &all, "--keep", &keep];
                let churned = measure(*engine, directory, "churn", &args)?;
                note("churn /s", number(&churned, "per_second"));
                note("churn most MiB on disk", number(&churned, "most_mib"));
                note("churn peak MiB", number(&churned, "peak_mib"));
            }
            if wanted("tail") {
                let tail = measure(*engine, directory, "tail", &[])?;
                note("tail read p50 µs", number(&tail, "p50_us"));
            }
        }
        print(engines, &figures);
    }
    Ok(())
}

fn appends(engine: Choice, directory: &Path, note: &mut dyn FnMut(&str, f64)) -> Result<()> {
    for size in ["128", "1024"] {
        for publishers in ["1", "16", "256"] {
            let args = ["--publishers", publishers, "--size", size, "--seconds", "2"];
            let found = measure(engine, directory, "appends", &args)?;
            note(
                &format!("{publishers} × {size} B /s"),
                number(&found, "per_second"),
            );
            if size == "128" {
                note(&format!("{publishers} × p50 µs"), number(&found, "p50_us"));
                note(&format!("{publishers} × p99 µs"), number(&found, "p99_us"));
            }
        }
    }
    Ok(())
}

/// Fill, kill, open, scan, drop: the same data all along.
fn life(
    engine: Choice,
    directory: &Path,
    records: u64,
    note: &mut dyn FnMut(&str, f64),
) -> Result<()> {
    let records = records.to_string();
    let place = directory.join(engine.name());
    clear(&place)?;
    let mut child = command(engine, &place, "fill")
        .args(["--records", &records, "--hold"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().context("standard output is piped")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    child.kill()?;
    child.wait()?;
    let filled: Value = serde_json::from_str(&line)?;
    note("batches of 1000 /s", number(&filled, "per_second"));
    note("fill peak MiB", number(&filled, "peak_mib"));
    note("bytes a record", number(&filled, "bytes_per_record"));

    let opened = execute(command(engine, &place, "open").args(["--records", &records]))?;
    note("open after kill ms", number(&opened, "open_ms"));
    note("open MiB", number(&opened, "resident_mib"));
    let scanned = execute(&mut command(engine, &place, "scan"))?;
    note("scan /s", number(&scanned, "per_second"));
    let before = disk::used(&place)?;
    let dropped = execute(command(engine, &place, "retain").args(["--records", &records]))?;
    note("drop half ms", number(&dropped, "drop_ms"));
    let after = disk::used(&place)?;
    note(
        "freed % once closed",
        (1.0 - after as f64 / before as f64) * 100.0,
    );
    note(
        "read start after drop ms",
        number(&dropped, "read_from_start_ms"),
    );
    clear(&place)
}

fn measure(engine: Choice, directory: &Path, what: &str, args: &[&str]) -> Result<Value> {
    let place = directory.join(engine.name());
    clear(&place)?;
    let found = execute(command(engine, &place, what).args(args))?;
    clear(&place)?;
    Ok(found)
}

fn command(engine: Choice, place: &Path, what: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([what, "--engine", &engine.name(), "--directory"])
        .arg(place);
    command
}

fn execute(command: &mut Command) -> Result<Value> {
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn clear(place: &Path) -> Result<()> {
    if place.exists() {
        std::fs::remove_dir_all(place)?;
    }
    Ok(())
}

fn number(found: &Value, name: &str) -> f64 {
    found[name].as_f64().unwrap_or(f64::NAN)
}

fn print(engines: &[Choice], figures: &Figures) {
    let mut names: Vec<&str> = Vec::new();
    for (_, name) in figures.keys() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    println!("| engine | {} |", names.join(" | "));
    println!("|---{}|", "|---:".repeat(names.len()));
    for (position, engine) in engines.iter().enumerate() {
        let cells: Vec<_> = names
            .iter()
            .map(|name| {
                let values = figures.get(&(position, (*name).to_owned()));
                values.map_or_else(|| "–".to_owned(), |values| shown(median(values)))
            })
            .collect();
        println!("| {} | {} |", engine.name(), cells.join(" | "));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn shown(value: f64) -> String {
    if value.abs() < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

//! `laneway-faults`: what `cargo xtask faults` builds and runs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use laneway_faults::frame::Run;
use laneway_faults::{ALL, delay, file, group};

/// Breaks things by a seeded plan, and judges what came of it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask faults", bin_name = "cargo xtask faults")]
struct Arguments {
    /// Which one; `--list` shows them.
    #[arg(required_unless_present = "list")]
    name: Option<String>,

    /// Show what there is.
    #[arg(long)]
    list: bool,

    /// The long version.
    #[arg(long)]
    full: bool,

    /// Repeat the plan of an earlier run [default: a new one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let result = match arguments.peek().and_then(|first| first.to_str()) {
        Some(delay::child::ARGUMENT) => delay::child::run(arguments),
        Some(file::child::ARGUMENT) => file::child::run(arguments),
        Some(group::child::ARGUMENT) => group::child::run(arguments),
        Some(group::poison::child::ARGUMENT) => group::poison::child::run(arguments),
        _ => run(Arguments::parse()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let Some(name) = arguments.name.filter(|_| !arguments.list) else {
        for entry in ALL {
            println!("{:<12} {}", entry.name, entry.about);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some(entry) = ALL.iter().find(|entry| entry.name == name) else {
        let names: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        bail!(
            "there is no fault run {name}; choose from {}",
            names.join(", ")
        );
    };

    // Short enough to be typed again.
    let seed = arguments
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let folder = Path::new("target").join("faults");
    let mut run = Run::new(entry.name, seed, arguments.full, &folder)?;
    let full = if arguments.full { " --full" } else { "" };
    let again = format!("cargo xtask faults {name}{full} --seed {seed}");
    println!(
        "{}: {}\nseed {seed}, again with: {again}",
        entry.name, entry.about
    );

    let verdict =
        (entry.run)(&mut run).with_context(|| format!("not judged; again with: {again}"))?;
    println!("{verdict}");
    println!("journal {}, again with: {again}", run.journal().display());
    Ok(if verdict.passes() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

//! `laneway-faults`: what `cargo xtask faults` builds and runs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use laneway_faults::frame::Run;
use laneway_faults::{ALL, delay, file, group};
use runs::Choice;

/// Breaks things by a seeded plan, and judges what came of it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask faults", bin_name = "cargo xtask faults")]
struct Arguments {
    #[command(flatten)]
    choice: Choice,

    /// The long version.
    #[arg(long)]
    full: bool,

    /// Repeat the plan of an earlier run [default: a new one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Of `life`: only this one of those that live (file, delay, nats, kafka) [default: all].
    #[arg(long, value_name = "NAME")]
    store: Option<String>,

    /// Of `life`: how long each of them lives [default: half a minute, or an hour with --full]. Of `cluster`: no fault begins
    /// after that [default: all of the plan].
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,

    /// Of `cluster`: what it runs on (nats, kafka) [default: nats].
    #[arg(long, value_name = "NAME", conflicts_with = "store")]
    stack: Option<String>,

    /// End with one line of JSON: {"faults": NAME, "figures": {...}}.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    runs::exit(match arguments.peek().and_then(|first| first.to_str()) {
        Some(delay::child::ARGUMENT) => delay::child::run(arguments),
        Some(file::child::ARGUMENT) => file::child::run(arguments),
        Some(file::life::child::ARGUMENT) => file::life::child::run(arguments),
        Some(group::child::ARGUMENT) => group::child::run(arguments),
        Some(group::life::child::ARGUMENT) => group::life::child::run(arguments),
        Some(group::poison::child::ARGUMENT) => group::poison::child::run(arguments),
        _ => run(Arguments::parse()),
    })
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let Some(entry) = arguments.choice.of("fault run", ALL)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let name = entry.name;

    // Short enough to be typed again.
    let seed = arguments
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let folder = Path::new("target").join("faults");
    let mut run = Run::new(entry.name, seed, arguments.full, &folder)?;
    let full = if arguments.full { " --full" } else { "" };
    let given = |option: &str, value: Option<&String>| {
        value.map_or_else(String::new, |value| format!(" --{option} {value}"))
    };
    let store =
        given("store", arguments.store.as_ref()) + &given("stack", arguments.stack.as_ref());
    let again = format!("cargo xtask faults {name}{full}{store} --seed {seed}");
    run.restrict(arguments.store.or(arguments.stack));
    run.limit(arguments.seconds.map(std::time::Duration::from_secs));
    println!(
        "{}: {}\nseed {seed}, again with: {again}",
        entry.name, entry.about
    );

    let verdict =
        (entry.run)(&mut run).with_context(|| format!("not judged; again with: {again}"))?;
    println!("{verdict}");
    println!("journal {}, again with: {again}", run.journal().display());
    if arguments.json {
        println!("{}", verdict.figures().json("faults", name));
    }
    Ok(if verdict.passes() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

//! `laneway-bench`: what `cargo xtask bench` builds and runs.

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use laneway_bench::frame::Scale;
use laneway_bench::{ALL, machine, report};
use runs::{Choice, Progress};

/// Contenders allocate on one thread and free on another; this one is good at that, for all alike.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs a benchmark, contenders side by side.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Arguments {
    #[command(flatten)]
    choice: Choice,

    /// Fewer rounds and smaller workloads; nothing is written to bench/results.
    #[arg(long)]
    quick: bool,

    /// Only this scenario, by its name in the table, or all of a group (`nats` of `nats: late`); nothing is written to bench/results.
    #[arg(long, value_name = "SCENARIO")]
    only: Option<String>,

    /// End with one line of JSON: {"bench": NAME, "figures": {...}}.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    runs::exit(run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(entry) = arguments.choice.of("benchmark", ALL)? else {
        return Ok(ExitCode::SUCCESS);
    };

    let scale = if arguments.quick {
        Scale::Quick
    } else {
        Scale::Full
    };
    let bench = match &arguments.only {
        None => (entry.build)(scale),
        Some(scenario) => (entry.build)(scale).only(scenario)?,
    };
    if let Some(service) = entry.service.filter(|service| !service.is_settled()) {
        return service.run_with();
    }
    let results = bench.run(&Progress::shown());
    println!("{}: {}", entry.name, entry.about);
    println!("{}", machine::describe());
    println!("{}", report::table(&results));
    if scale == Scale::Full && arguments.only.is_none() {
        for path in report::save(&results, &format!("cargo xtask bench {}", entry.name))? {
            eprintln!("wrote {}", shown(&path));
        }
    }
    if arguments.json {
        println!("{}", results.json());
    }
    Ok(match results.errors().next() {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

/// A path as seen from here.
fn shown(path: &std::path::Path) -> String {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(&here)
        .unwrap_or(path)
        .display()
        .to_string()
}

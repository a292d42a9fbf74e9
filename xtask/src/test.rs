//! `cargo xtask test`: checks, then services, then all tests, and a table of what came of it.
//!
//! Services are fetched and started on a thread of their own while the checks and the tests are
//! compiled. Nothing stops the run early: a check that fails, a test that hangs and a service that
//! cannot be had each cost one row in the table, and the rest still runs.
//!
//! How tests ask for a service, and how they say that they had to be skipped, is the business of the
//! `needs` crate; [`selection`] tells which services a test program uses by its name.

mod checks;
mod deny;
mod features;
mod layout;
mod libtest;
mod selection;
mod suites;
mod summary;
mod tls;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use needs::Skip;

use self::selection::{Selection, Workspace};
use self::suites::Environment;
use self::summary::{Row, Summary};
use crate::services::{self, Outcome, Service, Shape, State};
use crate::workspace::in_ci;

/// `cargo xtask test …`
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Run a part: `checks`, `services`, `kafka-tls`, a service (`nats`), a package (`laneway`) or a
    /// test program (`nats_publish`).
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// No services, no slow tests, fewer checks, and only what users build.
    #[arg(long)]
    quick: bool,

    /// A service that cannot be had is a failure [default: if CI=true].
    #[arg(long, conflicts_with = "quick")]
    require_services: bool,
}

/// Runs `cargo xtask test …`.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let selection = match &args.only {
        Some(name) => workspace.only(name, args.quick)?,
        None => workspace.everything(args.quick),
    };
    let require_services = args.require_services || (in_ci() && !args.quick);

    let started = Instant::now();
    let mut summary = Summary::default();
    run_selection(
        &workspace,
        &selection,
        args.quick,
        require_services,
        &mut summary,
    );
    if let Err(error) = services::release() {
        let outcome = Err(format!("{error:#}"));
        summary.add(Row::check("services (stop)", outcome, Duration::ZERO));
    }
    if require_services {
        summary.fail_skipped();
    }

    eprintln!("took {} s", started.elapsed().as_secs());
    println!("{}", summary.render());
    Ok(match summary.failed() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn run_selection(
    workspace: &Workspace,
    selection: &Selection,
    quick: bool,
    require_services: bool,
    summary: &mut Summary,
) {
    let services = services_in_background(&selection.services);
    checks::run(workspace, selection.checks, summary);
    let chosen = selection.tests.as_ref();
    let plain = chosen.map(|chosen| suites::build(workspace, "build of the tests", chosen, &[]));
    let with_tls = selection.kafka_tls.then(|| tls::build(workspace));
    let mut suites = Vec::new();
    for built in plain.into_iter().chain(with_tls) {
        match built {
            Ok(built) => suites.extend(built),
            Err(row) => summary.add(*row),
        }
    }

    let outcomes = services.join().expect("starting services does not panic");
    for outcome in &outcomes {
        summary.add(service_row(outcome, require_services));
    }

    let environment = Environment::new(&outcomes, quick);
    for suite in suites {
        let row = suite.run(&environment);
        if !row.is_empty() {
            summary.add(row);
        }
    }
    if let Some(chosen) = &selection.doc_tests {
        summary.add(suites::doc_tests(chosen, &environment));
    }
}

fn services_in_background(wanted: &BTreeSet<Service>) -> thread::JoinHandle<Vec<Outcome>> {
    let wanted: Vec<Service> = wanted.iter().copied().collect();
    thread::spawn(move || match wanted.as_slice() {
        [] => Vec::new(),
        wanted => services::ensure(wanted, Shape::default()),
    })
}

/// Services start side by side, so they have no times of their own here.
fn service_row(outcome: &Outcome, required: bool) -> Row {
    let suite = format!("service {}", outcome.service);
    match &outcome.state {
        State::Ready {
            version, address, ..
        } => Row {
            // Which server it was belongs to what the tests have shown.
            note: format!("{version} at {address}"),
            ..Row::check(suite, Ok(()), Duration::ZERO)
        },
        State::Unavailable { why } if required => {
            Row::check(suite, Err(why.clone()), Duration::ZERO)
        }
        State::Unavailable { why } => Row {
            skipped: vec![Skip {
                test: suite.clone(),
                why: why.clone(),
            }],
            suite,
            ..Row::default()
        },
    }
}

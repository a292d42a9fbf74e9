//! `cargo xtask services …`

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, anyhow};

use super::ledger::Ledger;
use super::process::Process;
use super::table::{Row, render};
use super::{Outcome, Service, Shape, down, ensure, environment, interrupt, keep, release};

/// Real servers for tests: Kafka, NATS, Redis, `ZooKeeper`, nginx and, if asked for, Chromium and kcat.
///
/// They listen on free loopback ports. Programs that are missing are fetched into target/tools; data
/// and logs are in target/services. A server that is named in the environment (`LANEWAY_TEST_KAFKA`
/// and the like) is used instead of starting one.
#[derive(Debug, clap::Args)]
pub(crate) struct ServicesArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Start what is not running yet, and say how to reach it.
    Up(Choice),
    /// Stop everything that was started here.
    Down,
    /// Show what runs, and what does not and why.
    Status,
    /// Print the variables of what runs, for `eval "$(cargo xtask services env)"`.
    Env,
    /// Run a command with the services up; those that were not up before are stopped afterwards.
    Run {
        #[command(flatten)]
        choice: Choice,
        /// The command and its arguments.
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
}

/// Which services.
#[derive(Debug, clap::Args)]
struct Choice {
    /// Only these [default: all but Chromium and kcat].
    #[arg(long, value_delimiter = ',', value_name = "SERVICE")]
    only: Vec<Service>,

    /// These as well.
    #[arg(long, value_delimiter = ',', value_name = "SERVICE")]
    with: Vec<Service>,

    #[command(flatten)]
    shape: Shape,
}

impl Choice {
    fn services(&self) -> Vec<Service> {
        let base: &[Service] = if self.only.is_empty() {
            &Service::SERVERS
        } else {
            &self.only
        };
        let mut services = [base, &self.with].concat();
        services.sort_unstable();
        services.dedup();
        services
    }

    fn ensure(&self) -> Vec<Outcome> {
        ensure(&self.services(), self.shape)
    }
}

/// Runs `cargo xtask services …`.
pub(crate) fn run(args: ServicesArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Up(choice) => up(&choice),
        Action::Down => down().map(|()| ExitCode::SUCCESS),
        Action::Status => status(),
        Action::Env => env(),
        Action::Run { choice, command } => run_command(&choice, &command),
    }
}

fn up(choice: &Choice) -> anyhow::Result<ExitCode> {
    let outcomes = choice.ensure();
    keep()?;
    println!("{}\n", outcome_table(&outcomes));
    hint(&outcomes);
    print_exports(&environment(&outcomes));
    Ok(success_if(outcomes.iter().all(Outcome::is_ready)))
}

fn status() -> anyhow::Result<ExitCode> {
    let ledger = Ledger::load()?;
    let ledger = &ledger;
    // At the same time, so that several that do not answer cost no more patience than one.
    let rows = thread::scope(|scope| {
        let threads = Service::ALL.map(|service| scope.spawn(move || Row::of_now(service, ledger)));
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .map_err(|_| anyhow!("a health check panicked"))
            })
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    println!("{}", render(&rows));
    Ok(success_if(!rows.iter().any(|row| row.is_trouble)))
}

fn env() -> anyhow::Result<ExitCode> {
    let ledger = Ledger::load()?;
    for entry in &ledger.entries {
        if let Some(reached) = &entry.reached {
            print_exports(&reached.variables);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_command(choice: &Choice, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command")?;
    let outcomes = choice.ensure();
    eprintln!("{}\n", outcome_table(&outcomes));
    hint(&outcomes);
    // Not while an interruption stops the servers.
    let permit = interrupt::start_permit();
    let child = Command::new(program)
        .args(arguments)
        .envs(environment(&outcomes))
        .spawn();
    interrupt::set_command(
        child
            .as_ref()
            .ok()
            .and_then(|child| Process::with_id(child.id())),
    );
    drop(permit);
    let result = child.and_then(|mut child| child.wait());
    interrupt::set_command(None);
    release()?;
    let status = result.with_context(|| format!("cannot run {}", program.display()))?;
    // As shells do it: a command that was ended by signal 9 gives 137.
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn outcome_table(outcomes: &[Outcome]) -> String {
    render(&outcomes.iter().map(Row::of_outcome).collect::<Vec<_>>())
}

fn hint(outcomes: &[Outcome]) {
    let missing = outcomes.iter().filter(|outcome| !outcome.is_ready());
    for service in missing.map(|outcome| outcome.service) {
        eprintln!("to use a {service} of yours, set {}", service.env_var());
    }
}

fn print_exports(variables: &[(String, String)]) {
    for (name, value) in variables {
        println!("export {name}='{}'", value.replace('\'', r"'\''"));
    }
}

fn success_if(well: bool) -> ExitCode {
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(only: &[Service], with: &[Service]) -> Vec<Service> {
        Choice {
            only: only.to_vec(),
            with: with.to_vec(),
            shape: Shape::default(),
        }
        .services()
    }

    #[test]
    fn programs_come_only_when_asked_for() {
        assert_eq!(choice(&[], &[]), Service::SERVERS);
        let programs = [Service::Chromium, Service::Kcat];
        assert_eq!(choice(&[], &programs), Service::ALL);
    }

    #[test]
    fn each_service_is_wanted_once() {
        assert_eq!(
            choice(&[Service::Nats, Service::Nats], &[Service::Nats]),
            [Service::Nats]
        );
    }
}

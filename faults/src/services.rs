//! The servers that tests run on are killed with signal 9, one or two at a time.
//!
//! What must hold: `cargo xtask services status` sees every death, and none that did not happen;
//! `services up` brings every one back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fmt, fs};

use anyhow::{Context, Result, bail, ensure};
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::frame::Run;
use crate::shell::{self, Output};
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "services";
/// What it breaks.
pub const ABOUT: &str = "kill -9 of the test servers: status sees it, up repairs it";

/// The first start may have to download and build.
const UP_LIMIT: Duration = Duration::from_mins(20);
const STATUS_LIMIT: Duration = Duration::from_mins(2);
const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// Servers that are killed at the same moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    victims: Vec<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kill -9 {}", self.victims.join(" and "))
    }
}

/// Runs it.
///
/// # Errors
///
/// If the services do not come up in the first place, or commands cannot be run.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let ran_before = status()?.values().any(|state| state == "running");
    up(run)?;
    let servers: Vec<String> = processes()?.into_keys().collect();
    let count = if run.is_full() { 20 } else { 5 };
    let plan = plan(run.dice(), &servers, count);
    run.announce(&plan);

    let outcome = plan
        .iter()
        .try_fold(Tally::default(), |tally, step| tally.after(step, run));
    // Servers of people who had them up already stay up.
    if !ran_before {
        services(&["down"], STATUS_LIMIT)?;
    }
    Ok(outcome?.verdict())
}

/// Mostly one at a time, sometimes two.
fn plan(dice: &mut impl Rng, servers: &[String], steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| {
            let victims = if dice.random_bool(0.3) { 2 } else { 1 };
            Step {
                victims: servers.sample(dice, victims).cloned().collect(),
            }
        })
        .collect()
}

/// What came of the steps so far.
#[derive(Debug, Default)]
struct Tally {
    kills: u64,
    seen: u64,
    false_alarms: u64,
    repaired: u64,
    details: Vec<String>,
    slowest_repair: Duration,
}

impl Tally {
    fn after(mut self, step: &Step, run: &mut Run) -> Result<Self> {
        let before = processes()?;
        for victim in &step.victims {
            let Some(&pid) = before.get(victim) else {
                bail!("{victim} does not run, so it cannot be killed");
            };
            kill(pid).with_context(|| format!("cannot kill {victim}"))?;
            run.note(format_args!("killed {victim}, process {pid}"));
            self.kills += 1;
        }

        for (server, state) in status()? {
            let killed = step.victims.contains(&server);
            match (killed, state.as_str()) {
                (true, "dead") => self.seen += 1,
                (true, _) => self.broken(run, format!("{server} is dead, status says {state}")),
                (false, "dead" | "not answering") => {
                    self.false_alarms += 1;
                    self.broken(run, format!("{server} was left alone, status says {state}"));
                }
                (false, _) => {}
            }
        }

        let started = Instant::now();
        up(run)?;
        let took = started.elapsed();
        self.slowest_repair = self.slowest_repair.max(took);
        run.note(format_args!("up again after {:.1} s", took.as_secs_f64()));
        let states = status()?;
        for victim in &step.victims {
            match states.get(victim).map(String::as_str) {
                Some("running") => self.repaired += 1,
                state => self.broken(run, format!("{victim} was not brought back: {state:?}")),
            }
        }
        Ok(self)
    }

    fn broken(&mut self, run: &mut Run, what: String) {
        run.note(&what);
        self.details.push(what);
    }

    fn verdict(self) -> Verdict {
        let verdict = Verdict::new()
            .count("kills", self.kills)
            .must_be("deaths seen by status", self.seen, self.kills)
            .must_be("false alarms", self.false_alarms, 0)
            .must_be("brought back by up", self.repaired, self.kills)
            .count("slowest repair in seconds", self.slowest_repair.as_secs());
        self.details.into_iter().fold(verdict, Verdict::detail)
    }
}

fn kill(pid: i32) -> Result<()> {
    kill_process(
        Pid::from_raw(pid).context("a process id is above zero")?,
        Signal::KILL,
    )?;
    let gone = || is_gone(pid).then_some(anyhow::Ok(()));
    ensure!(
        shell::wait_until(DEATH_LIMIT, gone)?.is_some(),
        "process {pid} is still there after {DEATH_LIMIT:?}"
    );
    Ok(())
}

/// A zombie is gone too: whether somebody collects it is not our business.
fn is_gone(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state follows the name, which is in parentheses and may contain some itself.
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

fn up(run: &mut Run) -> Result<()> {
    let output = services(&["up"], UP_LIMIT)?;
    if !output.status.success() {
        run.note(&output.text);
        bail!("services up failed; its table is above");
    }
    Ok(())
}

/// What `services status` says of each server.
fn status() -> Result<BTreeMap<String, String>> {
    let output = services(&["status"], STATUS_LIMIT)?;
    let states = states(&output.text);
    ensure!(
        !states.is_empty(),
        "services status printed no table:\n{}",
        output.text
    );
    Ok(states)
}

/// Reads the table: the first column is the service, the fourth its state.
fn states(table: &str) -> BTreeMap<String, String> {
    table
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split(['│', '┆']).map(str::trim).collect();
            match cells.as_slice() {
                ["", service, _version, _address, state, ..]
                    if !service.is_empty() && *service != "service" =>
                {
                    Some(((*service).to_owned(), (*state).to_owned()))
                }
                _ => None,
            }
        })
        .collect()
}

/// The process of each server that was started here.
fn processes() -> Result<BTreeMap<String, i32>> {
    #[derive(Deserialize)]
    struct State {
        entries: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        service: String,
        nodes: Vec<Node>,
    }
    #[derive(Deserialize)]
    struct Node {
        process: Process,
    }
    #[derive(Deserialize)]
    struct Process {
        pid: i32,
    }

    let file = root().join("target/services/state.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let state: State = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what it was", file.display()))?;
    let first = |entry: Entry| Some((entry.service, entry.nodes.first()?.process.pid));
    Ok(state.entries.into_iter().filter_map(first).collect())
}

/// `cargo xtask services …`, as anybody would type it.
fn services(arguments: &[&str], limit: Duration) -> Result<Output> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(["xtask", "services"])
        .args(arguments);
    shell::run(&mut command, limit)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("faults lives one folder below the workspace root")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::{plan, states};

    #[test]
    fn a_plan_follows_from_its_seed_and_kills_nobody_twice_at_once() {
        let servers = ["kafka", "nats", "redis"].map(String::from);
        let of = |seed| plan(&mut StdRng::seed_from_u64(seed), &servers, 50);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        for step in of(7) {
            match step.victims.as_slice() {
                [_] => {}
                [one, other] => assert_ne!(one, other),
                victims => panic!("{} victims", victims.len()),
            }
        }
    }

    #[test]
    fn states_are_read_from_the_table() {
        let table = "\
┌─────────┬─────────┬─────────────────┬─────────┬────────────────────┐
│ service ┆ version ┆ address         ┆ state   ┆ why not            │
╞═════════╪═════════╪═════════════════╪═════════╪════════════════════╡
│ kafka   ┆ 4.1.0   ┆ 127.0.0.1:1     ┆ dead    ┆ kafka-1 has ended, │
│         ┆         ┆                 ┆         ┆ see its log        │
│ nats    ┆ 2.12.1  ┆ 127.0.0.1:2     ┆ running ┆                    │
└─────────┴─────────┴─────────────────┴─────────┴────────────────────┘
";
        let states = states(table);
        assert_eq!(states.len(), 2);
        assert_eq!(states["kafka"], "dead");
        assert_eq!(states["nats"], "running");
    }
}

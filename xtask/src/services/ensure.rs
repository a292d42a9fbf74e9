//! Bringing services up: reuse what fits, replace what does not, start what is missing.

use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use super::deadline::Deadline;
use super::ledger::{Entry, Ledger, Lock, Reached};
use super::probe::probe;
use super::process::Process;
use super::progress::Line;
use super::release::sweep;
use super::site::{self, Site, with};
use super::{NatsSync, Outcome, Service, Shape, Source, State, interrupt, place, server};

/// How long a server may take from its start to its first answer.
const START: Duration = Duration::from_secs(90);

/// How long a server that is up already may take to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Starts or reuses the wanted services for this process; one outcome each, in the order asked for.
///
/// Servers that are named in the environment are used instead of starting any. The others are kept
/// alive until this process calls [`release`](super::release()) or ends.
pub(crate) fn ensure(wanted: &[Service], shape: Shape) -> Vec<Outcome> {
    try_ensure(wanted, shape).unwrap_or_else(|error| {
        let why = one_line(&error);
        wanted
            .iter()
            .map(|&service| Outcome::unavailable(service, &why))
            .collect()
    })
}

fn try_ensure(wanted: &[Service], shape: Shape) -> anyhow::Result<Vec<Outcome>> {
    let me = Process::current()?;
    interrupt::listen();
    let _lock = Lock::take()?;
    let ledger = Mutex::new(Ledger::load()?);
    sweep(&ledger, wanted)?;

    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> = wanted
            .iter()
            .map(|&service| {
                let line = Line::of(service);
                let ledger = &ledger;
                let thread = scope.spawn(move || {
                    let state = provide(service, shape, me, &line, ledger);
                    line.finish();
                    state
                });
                (service, thread)
            })
            .collect();
        threads
            .into_iter()
            .map(|(service, thread)| {
                let state = thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("starting it panicked")));
                match state {
                    Ok(state) => Outcome { service, state },
                    Err(error) => Outcome::unavailable(service, one_line(&error)),
                }
            })
            .collect::<Vec<_>>()
    });

    with(&ledger, |ledger| {
        for outcome in &outcomes {
            ledger.unavailable.remove(&outcome.service);
            if let State::Unavailable { why } = &outcome.state {
                ledger.unavailable.insert(outcome.service, why.clone());
            }
        }
        ledger.save()
    })?;
    Ok(outcomes)
}

fn provide(
    service: Service,
    shape: Shape,
    me: Process,
    line: &Line,
    ledger: &Mutex<Ledger>,
) -> anyhow::Result<State> {
    if let Some(address) = given(service) {
        return use_given(service, address);
    }
    let (nodes, nats_sync) = wanted_of(service, shape);
    let mut entry = Entry {
        service,
        nodes: Vec::new(),
        size: nodes.unwrap_or(1),
        nats_sync: nats_sync.unwrap_or_default(),
        kept: false,
        users: Vec::new(),
        reached: None,
    };
    if let Some(found) = with(ledger, |ledger| ledger.entry(service).cloned()) {
        let fits = nodes.is_none_or(|nodes| nodes == found.size)
            && nats_sync.is_none_or(|sync| sync == found.nats_sync);
        let healthy = check(&found);
        if let (true, Ok(reached)) = (fits, &healthy) {
            let reached = Reached::clone(reached);
            with(ledger, |ledger| {
                if let Some(entry) = ledger
                    .entry_mut(service)
                    .filter(|entry| !entry.users.contains(&me))
                {
                    entry.users.push(me);
                }
                ledger.save()
            })?;
            return Ok(ready(reached, Source::Reused));
        }
        if healthy.is_ok() && found.is_used_by_others(me) {
            bail!("it runs in another shape and is in use; wait for the other xtask to end");
        }
        line.say("stopping the one that does not fit");
        // What is not asked for stays as it was.
        entry.size = nodes.unwrap_or(found.size);
        entry.nats_sync = nats_sync.unwrap_or(found.nats_sync);
        entry.kept = found.kept;
        entry.users = found.users;
        site::clear(service, ledger)?;
    }
    if !entry.users.contains(&me) {
        entry.users.push(me);
    }
    let site = Site::open(entry, line, ledger)?;
    match start(&site) {
        Ok(reached) => Ok(ready(reached, Source::Started)),
        Err(error) => {
            site.clear()
                .context("cannot clean up after the failed start")?;
            Err(error)
        }
    }
}

/// What the shape says about one service.
fn wanted_of(service: Service, shape: Shape) -> (Option<u8>, Option<NatsSync>) {
    match service {
        Service::Kafka => (shape.kafka_nodes, None),
        Service::Nats => (shape.nats_nodes, shape.nats_sync),
        Service::Redis
        | Service::Zookeeper
        | Service::Nginx
        | Service::Chromium
        | Service::Kcat => (None, None),
    }
}

fn start(site: &Site<'_>) -> anyhow::Result<Reached> {
    const ATTEMPT: Duration = Duration::from_secs(3);

    let built = server::build(site)?;
    site.line.say("waiting for its first answer");
    let mut last = None;
    // A program that is merely to be had either runs or does not.
    let patience = if site.has_nodes() {
        START
    } else {
        Duration::ZERO
    };
    let answer = Deadline::after(patience).poll(|| {
        if let Err(ended) = site.check_alive() {
            return Some(Err(ended));
        }
        match probe(site.service, &built.address, ATTEMPT) {
            Ok(version) => Some(Ok(version)),
            Err(error) => {
                last = Some(error);
                None
            }
        }
    });
    let Some(answer) = answer else {
        let last = last.unwrap_or_else(|| anyhow!("it was not even asked"));
        return Err(last).with_context(|| format!("no answer after {} s", patience.as_secs()));
    };
    let version = answer?.or(built.version);
    let mut variables = vec![(site.service.env_var().to_owned(), built.address.clone())];
    if let Some((name, program)) = site.service.binary_env_var().zip(built.program) {
        variables.push((name.to_owned(), program.display().to_string()));
    }
    let reached = Reached {
        address: built.address,
        version: version.unwrap_or_else(|| "unknown".to_owned()),
        variables,
    };
    site.complete(reached.clone())?;
    site.line.say("ready");
    Ok(reached)
}

/// The address that the user named, if any.
pub(crate) fn given(service: Service) -> Option<String> {
    env::var(service.env_var())
        .ok()
        .filter(|address| !address.trim().is_empty())
}

fn use_given(service: Service, address: String) -> anyhow::Result<State> {
    let version = probe(service, &address, ANSWER)
        .with_context(|| format!("{} names a server that does not answer", service.env_var()))?;
    let program = service
        .binary_env_var()
        .and_then(|name| Some((name.to_owned(), env::var(name).ok()?)));
    let mut variables = vec![(service.env_var().to_owned(), address.clone())];
    variables.extend(program);
    let version = version.unwrap_or_else(|| "unknown".to_owned());
    Ok(ready(
        Reached {
            address,
            version,
            variables,
        },
        Source::Given,
    ))
}

fn ready(reached: Reached, source: Source) -> State {
    let Reached {
        address,
        version,
        variables,
    } = reached;
    State::Ready {
        address,
        version,
        source,
        variables,
    }
}

/// Whether a service that was started is still well.
pub(crate) fn check(entry: &Entry) -> anyhow::Result<&Reached> {
    if let Some(node) = entry.first_dead() {
        bail!(
            "{} (process {}) has ended; log: {}",
            node.name,
            node.process.pid,
            place::shown(&node.log)
        );
    }
    let reached = entry
        .reached
        .as_ref()
        .context("it did not get as far as its first answer")?;
    probe(entry.service, &reached.address, ANSWER)?;
    Ok(reached)
}

/// An error for a cell of a table.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_concerns_only_its_services() {
        let shape = Shape {
            kafka_nodes: Some(3),
            nats_nodes: Some(1),
            nats_sync: Some(NatsSync::Always),
        };
        assert_eq!(wanted_of(Service::Kafka, shape), (Some(3), None));
        assert_eq!(
            wanted_of(Service::Nats, shape),
            (Some(1), Some(NatsSync::Always))
        );
        assert_eq!(wanted_of(Service::Redis, shape), (None, None));
    }

    #[test]
    fn errors_fit_on_one_line() {
        let error = anyhow!("cause\nin two lines").context("what failed");
        assert_eq!(one_line(&error), "what failed: cause in two lines");
    }
}

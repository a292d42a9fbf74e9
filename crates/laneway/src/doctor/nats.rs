//! Examines a NATS server.

use std::time::Duration;

use super::{Checkup, Finding, State, monitor};
use crate::Error;
use crate::broker::BrokerError;
use crate::broker::nats::{NatsOptions, Seen, inspect};
use crate::topic::{Kind, Storage};

/// What is needed, and what more is of use.
const OLDEST: (u64, u64) = (2, 11);
const RECOMMENDED: (u64, u64) = (2, 12);

/// Of a limit, in percent.
const NEARLY_ALL: u64 = 80;

/// A clock that is off by more than this makes ages and delays wrong; order never depends on it.
const MOST_SKEW: Duration = Duration::from_secs(1);

pub(super) async fn examine(address: &str, checkup: &Checkup) -> Result<Vec<Finding>, Error> {
    let options = NatsOptions::parse(address).map_err(BrokerError::from)?;
    // In a box: connecting is a large future.
    let seen = Box::pin(inspect(options)).await?;
    let mut findings = vec![version(&seen), jetstream(&seen)];
    findings.extend(limit("memory limit", seen.memory));
    findings.extend(limit("storage limit", seen.storage));
    findings.push(synced(checkup).await);
    findings.push(replicas(&seen));
    findings.push(topics(&seen));
    findings.extend(clashes(&seen));
    findings.push(Finding::of_round_trip(seen.round_trip));
    findings.push(clock(&seen));
    Ok(findings)
}

fn version(seen: &Seen) -> Finding {
    let found = format!("nats-server {}", seen.version);
    let is_before = |(major, minor): (u64, u64)| numbers(&seen.version) < Some((major, minor));
    if is_before(OLDEST) {
        return Finding::new("version", State::Bad, found)
            .change("upgrade to 2.12 or later: 2.11 is the oldest that works");
    }
    if is_before(RECOMMENDED) {
        return Finding::new("version", State::Doubtful, found).change("upgrade to 2.12 or later");
    }
    Finding::fine("version", found)
}

/// Major and minor version.
fn numbers(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split(['.', '-']).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn jetstream(seen: &Seen) -> Finding {
    match &seen.jetstream {
        Ok(()) => Finding::fine(
            "JetStream",
            format!("enabled, {} streams in this account", seen.streams),
        ),
        Err(error) => Finding::new("JetStream", State::Bad, error.clone()).change(
            "enable it (`jetstream: enabled` in the server's configuration), also for this account",
        ),
    }
}

/// What is used of something that has a limit.
fn limit(about: &'static str, (used, limit): (u64, Option<u64>)) -> Option<Finding> {
    let limit = limit?;
    let percent = used.saturating_mul(100) / limit.max(1);
    let what = format!("{} MiB of {} MiB used", used >> 20, limit >> 20);
    Some(if percent >= NEARLY_ALL {
        Finding::new(about, State::Doubtful, what)
            .change("raise the limit of the account, or shorten the retention of topics")
    } else {
        Finding::fine(about, what)
    })
}

/// What an acknowledgement is worth when the machine loses its power.
async fn synced(checkup: &Checkup) -> Finding {
    const ABOUT: &str = "sync before ack";
    const CHANGE: &str = "set `sync_interval: always` in the server's `jetstream` block, or use three \
                          replicas on machines that do not fail together";
    let Some(address) = &checkup.monitor else {
        return Finding::new(
            ABOUT,
            State::Unknown,
            "a server does not tell its clients; by default it syncs every 2 minutes",
        )
        .change(format!(
            "give --monitor http://HOST:8222 to find out; {CHANGE}"
        ));
    };
    let config = match monitor::ask(address).await {
        Ok(told) => told.jetstream.config,
        Err(error) => return Finding::new(ABOUT, State::Unknown, error),
    };
    match config {
        None => Finding::new(
            ABOUT,
            State::Unknown,
            format!("{address} tells nothing of it"),
        ),
        Some(config) if config.sync_always => Finding::fine(ABOUT, "always"),
        Some(config) => {
            let every = Duration::from_nanos(config.sync_interval.unwrap_or_default());
            let what = format!("every {every:?}: a power cut loses what came since");
            Finding::new(ABOUT, State::Doubtful, what).change(CHANGE)
        }
    }
}

fn replicas(seen: &Seen) -> Finding {
    const ABOUT: &str = "replicas";
    let asked = seen.replicas;
    if seen.cluster_size > 1 && asked < 2 {
        let what = format!("{asked} in a cluster of {}", seen.cluster_size);
        return Finding::new(ABOUT, State::Doubtful, what)
            .change("add `replicas=3` to the address: one server that dies takes nothing with it");
    }
    let few: Vec<_> = seen
        .topics
        .iter()
        .filter(|topic| topic.replicas < asked)
        .map(|topic| format!("{} ({})", topic.name, topic.replicas))
        .collect();
    if few.is_empty() {
        return Finding::fine(ABOUT, format!("{asked}"));
    }
    let what = format!("fewer than {asked}: {}", few.join(", "));
    Finding::new(ABOUT, State::Doubtful, what)
        .change("declare the topics with the strategy create_or_update, or change their streams")
}

/// Topics whose storage does not keep what their kind promises.
fn topics(seen: &Seen) -> Finding {
    const ABOUT: &str = "topics";
    let forgetful: Vec<_> = seen
        .topics
        .iter()
        .filter(|topic| topic.kind == Kind::Domain && topic.storage == Storage::Memory)
        .map(|topic| topic.name.as_str())
        .collect();
    if forgetful.is_empty() {
        return Finding::fine(ABOUT, format!("{}", seen.topics.len()));
    }
    let what = format!("domain topics in memory: {}", forgetful.join(", "));
    Finding::new(ABOUT, State::Bad, what)
        .change("a restart of the server loses them: use file storage for domain topics")
}

/// Topics that somebody else has a stream for, so that the two sides do not meet.
fn clashes(seen: &Seen) -> Option<Finding> {
    let clashes: Vec<_> = seen
        .clashes
        .iter()
        .map(|(topic, stream)| format!("{topic} is also a subject of stream {stream}"))
        .collect();
    if clashes.is_empty() {
        return None;
    }
    let finding = Finding::new("streams of others", State::Doubtful, clashes.join(", "));
    Some(finding.change(
        "what one side publishes the other does not read: delete the topic, so that it becomes their \
         stream, or give one of the two another name",
    ))
}

fn clock(seen: &Seen) -> Finding {
    const ABOUT: &str = "clock";
    let Some(skew_ms) = seen.skew_ms else {
        return Finding::new(ABOUT, State::Unknown, "the server told no time");
    };
    let what = format!("the server's is {skew_ms:+} ms from ours");
    if u128::from(skew_ms.unsigned_abs()) > MOST_SKEW.as_millis() {
        return Finding::new(ABOUT, State::Doubtful, what).change(
            "synchronise the clocks (NTP): ages, retention and delays follow the server's",
        );
    }
    Finding::fine(ABOUT, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(numbers("2.15.1"), Some((2, 15)));
        assert_eq!(numbers("2.9.0-beta.1"), Some((2, 9)));
        assert_eq!(numbers("dev"), None);
        assert!(numbers("2.9.0") < Some(OLDEST), "as numbers, not as text");
    }

    #[test]
    fn a_limit_that_is_nearly_reached_is_told() {
        assert_eq!(limit("storage limit", (1, None)), None);
        let state = |used| limit("storage limit", (used, Some(100))).unwrap().state;
        assert_eq!(state(79), State::Fine);
        assert_eq!(state(80), State::Doubtful);
    }
}

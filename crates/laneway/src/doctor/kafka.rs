//! Examines a Kafka cluster.

use std::time::Duration;

use super::{Finding, State};
use crate::Error;
use crate::broker::BrokerError;
use crate::broker::kafka::{KafkaOptions, Seen, inspect};

/// What a position with its metadata may take.
const METADATA: u64 = 4096;

/// A group should be remembered for at least this long.
const REMEMBERED: Duration = Duration::from_hours(7 * 24);

pub(super) async fn examine(address: &str) -> Result<Vec<Finding>, Error> {
    let options = KafkaOptions::parse(address).map_err(BrokerError::from)?;
    let seen = Box::pin(inspect(options)).await?;
    Ok(vec![
        version(&seen),
        replication(&seen),
        in_sync(&seen),
        election(&seen),
        created_by_use(&seen),
        remembered(&seen),
        metadata(&seen),
        session(&seen),
        topics(&seen),
        Finding::of_round_trip(seen.round_trip),
    ])
}

impl Seen {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }
}

fn unknown(about: &'static str, setting: &str) -> Finding {
    let what = format!("the brokers do not tell {setting}");
    Finding::new(about, State::Unknown, what)
}

/// Brokers do not tell their version; but they do not all have the same settings.
fn version(seen: &Seen) -> Finding {
    const ABOUT: &str = "version";
    let count = seen.brokers;
    if let Some(protocol) = seen.setting("inter.broker.protocol.version") {
        let what = format!("{count} brokers that speak {protocol}");
        return Finding::new(ABOUT, State::Doubtful, what)
            .change("upgrade to 4.0 or later: protocol=consumer needs it");
    }
    if seen.setting("group.consumer.session.timeout.ms").is_some() {
        return Finding::fine(ABOUT, format!("{count} brokers of 4.0 or later"));
    }
    unknown(ABOUT, "what they are")
}

fn replication(seen: &Seen) -> Finding {
    const ABOUT: &str = "replication";
    let said = seen.replicas.map(u64::from);
    let Some(copies) = said.or_else(|| seen.number("default.replication.factor")) else {
        return unknown(ABOUT, "default.replication.factor");
    };
    let what = format!(
        "new topics have {copies} copies on {} brokers",
        seen.brokers
    );
    if copies > seen.brokers as u64 {
        return Finding::new(ABOUT, State::Bad, what)
            .change("ask for no more copies than there are brokers");
    }
    if copies < 3 {
        return Finding::new(ABOUT, State::Doubtful, what).change(
            "three brokers and `replicas=3`: one that dies takes nothing with it and stops nobody",
        );
    }
    Finding::fine(ABOUT, what)
}

fn in_sync(seen: &Seen) -> Finding {
    const ABOUT: &str = "min in sync";
    let said = seen.min_in_sync.map(u64::from);
    let Some(least) = said.or_else(|| seen.number("min.insync.replicas")) else {
        return unknown(ABOUT, "min.insync.replicas");
    };
    let copies = seen.replicas.map(u64::from);
    let copies = copies.or_else(|| seen.number("default.replication.factor"));
    let what = format!("a record is published when {least} copies have it");
    match copies {
        Some(copies) if copies > 1 && least < 2 => Finding::new(ABOUT, State::Doubtful, what)
            .change(
                "`min_in_sync=2`: what is acknowledged survives the broker that acknowledged it",
            ),
        Some(copies) if least > copies || copies > 1 && least == copies => {
            Finding::new(ABOUT, State::Bad, format!("{what}, of {copies}")).change(
                "one less than there are copies: else one broker that is away stops publishing",
            )
        }
        _ => Finding::fine(ABOUT, what),
    }
}

fn election(seen: &Seen) -> Finding {
    const ABOUT: &str = "unclean election";
    match seen.setting("unclean.leader.election.enable") {
        Some("false") => Finding::fine(ABOUT, "off"),
        Some(_) => Finding::new(ABOUT, State::Bad, "on: a broker that is behind may lead")
            .change("set unclean.leader.election.enable=false: acknowledged events can be lost"),
        None => unknown(ABOUT, "unclean.leader.election.enable"),
    }
}

fn created_by_use(seen: &Seen) -> Finding {
    const ABOUT: &str = "auto-create";
    match seen.setting("auto.create.topics.enable") {
        Some("false") => Finding::fine(ABOUT, "off"),
        Some(_) => Finding::new(
            ABOUT,
            State::Doubtful,
            "on: others that mistype a name make a topic of it",
        )
        .change("set auto.create.topics.enable=false; the bus declares its topics itself"),
        None => unknown(ABOUT, "auto.create.topics.enable"),
    }
}

fn remembered(seen: &Seen) -> Finding {
    const ABOUT: &str = "offsets retention";
    let Some(minutes) = seen.number("offsets.retention.minutes") else {
        return unknown(ABOUT, "offsets.retention.minutes");
    };
    let hours = minutes / 60;
    let what = format!("groups that nobody reads with are forgotten after {hours} hours");
    if minutes < REMEMBERED.as_secs() / 60 {
        return Finding::new(ABOUT, State::Doubtful, what)
            .change("raise offsets.retention.minutes: a group that was forgotten begins anew");
    }
    Finding::fine(ABOUT, what)
}

fn metadata(seen: &Seen) -> Finding {
    const ABOUT: &str = "commit metadata";
    let Some(most) = seen.number("offset.metadata.max.bytes") else {
        return unknown(ABOUT, "offset.metadata.max.bytes");
    };
    let what = format!("up to {most} bytes with a commit");
    if most < METADATA {
        return Finding::new(ABOUT, State::Bad, what)
            .change("raise offset.metadata.max.bytes to 4096: commits would be refused");
    }
    Finding::fine(ABOUT, what)
}

fn session(seen: &Seen) -> Finding {
    const ABOUT: &str = "session";
    let (Some(least), Some(most)) = (
        seen.number("group.min.session.timeout.ms"),
        seen.number("group.max.session.timeout.ms"),
    ) else {
        return unknown(ABOUT, "group.min.session.timeout.ms");
    };
    let asked = u64::try_from(seen.session.as_millis()).unwrap_or(u64::MAX);
    let what = format!("{asked} ms; the brokers take {least} to {most}");
    if !(least..=most).contains(&asked) {
        return Finding::new(ABOUT, State::Bad, what).change("change session_ms of the address");
    }
    Finding::fine(ABOUT, what)
}

fn topics(seen: &Seen) -> Finding {
    const ABOUT: &str = "topics";
    let behind: Vec<_> = seen
        .topics
        .iter()
        .filter(|topic| topic.out_of_sync > 0)
        .collect();
    if behind.is_empty() {
        let fewest = seen.topics.iter().map(|topic| topic.replicas).min();
        let copies =
            fewest.map_or_else(String::new, |fewest| format!(", at least {fewest} copies"));
        return Finding::fine(ABOUT, format!("{}{copies}", seen.topics.len()));
    }
    let names: Vec<_> = behind.iter().map(|topic| topic.name.as_str()).collect();
    let what = format!("copies are out of sync: {}", names.join(", "));
    Finding::new(ABOUT, State::Doubtful, what).change("see which brokers are away, or slow")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::SeenTopic;

    fn seen(settings: &[(&str, &str)]) -> Seen {
        let settings = settings.iter();
        Seen {
            brokers: 3,
            settings: settings
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            replicas: Some(3),
            min_in_sync: Some(2),
            session: Duration::from_secs(10),
            topics: Vec::new(),
            round_trip: Duration::from_millis(1),
        }
    }

    #[test]
    fn what_can_lose_events_is_told() {
        let fine = seen(&[]);
        assert_eq!(replication(&fine).state, State::Fine);
        assert_eq!(in_sync(&fine).state, State::Fine);
        let few = Seen {
            replicas: Some(1),
            min_in_sync: Some(1),
            ..seen(&[])
        };
        assert_eq!(replication(&few).state, State::Doubtful);
        assert_eq!(in_sync(&few).state, State::Fine, "there is only one");
        let strict = Seen {
            min_in_sync: Some(3),
            ..seen(&[])
        };
        assert_eq!(in_sync(&strict).state, State::Bad);
        let unclean = seen(&[("unclean.leader.election.enable", "true")]);
        assert_eq!(election(&unclean).state, State::Bad);
        assert_eq!(election(&fine).state, State::Unknown);
    }

    #[test]
    fn what_would_be_refused_is_told() {
        let small = seen(&[("offset.metadata.max.bytes", "100")]);
        assert_eq!(metadata(&small).state, State::Bad);
        let limits = [
            ("group.min.session.timeout.ms", "30000"),
            ("group.max.session.timeout.ms", "60000"),
        ];
        assert_eq!(session(&seen(&limits)).state, State::Bad);
        let behind = Seen {
            topics: vec![SeenTopic {
                name: "orders".to_owned(),
                replicas: 3,
                out_of_sync: 1,
            }],
            ..seen(&[])
        };
        assert!(topics(&behind).what.contains("orders"));
    }
}

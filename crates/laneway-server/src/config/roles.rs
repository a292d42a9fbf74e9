//! What a process of a cluster does, and where it finds the others.

use super::secret::without_secrets;

/// The roles of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of four, each of which is asked for by its name"
)]
pub(crate) struct Roles {
    pub(crate) receive: bool,
    pub(crate) center: bool,
    pub(crate) worker: bool,
    pub(crate) admin: bool,
}

impl Roles {
    pub(crate) const ALL: Self = Self {
        receive: true,
        center: true,
        worker: true,
        admin: true,
    };

    /// Names with commas, each once.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut roles = Self {
            receive: false,
            center: false,
            worker: false,
            admin: false,
        };
        for name in text.split(',') {
            let role = match name.trim() {
                "receive" => &mut roles.receive,
                "center" => &mut roles.center,
                "worker" => &mut roles.worker,
                "admin" => &mut roles.admin,
                _ => return None,
            };
            if std::mem::replace(role, true) {
                return None;
            }
        }
        Some(roles)
    }

    pub(crate) fn show(self) -> String {
        let all = [
            ("receive", self.receive),
            ("center", self.center),
            ("worker", self.worker),
            ("admin", self.admin),
        ];
        let names = all.into_iter().filter(|(_, has)| *has);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(",")
    }
}

/// Where the servers of a cluster find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Registry {
    /// The NATS of the log, or this process if it has all roles.
    Auto,
    /// This process.
    Local,
    /// `HOST:PORT,HOST:PORT`.
    ZooKeeper(String),
    /// The whole address.
    Nats(String),
}

impl Registry {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "local" => Some(Self::Local),
            _ => match text.split_once("://")? {
                (_, "") => None,
                ("zookeeper", servers) => Some(Self::ZooKeeper(servers.to_owned())),
                ("nats", _) => Some(Self::Nats(text.to_owned())),
                _ => None,
            },
        }
    }

    pub(crate) fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Local => "local".to_owned(),
            Self::ZooKeeper(servers) => format!("zookeeper://{servers}"),
            Self::Nats(address) => address.clone(),
        }
    }

    /// The same, to be shown to others.
    pub(super) fn without_secrets(&self) -> Self {
        match self {
            Self::Nats(address) => Self::Nats(without_secrets(address)),
            other => other.clone(),
        }
    }
}

/// How long a center on Kafka is missed before its shards go to others, in milliseconds: the least that a broker takes
/// unless it is told otherwise.
const KAFKA_SESSION_MS: u32 = 6_000;

/// The address of a log, with the session of the centers if it is on Kafka and says none. With the protocol `consumer` it is
/// the broker's.
pub(super) fn with_session(log: String) -> String {
    let has = |name| has_setting(&log, |setting| setting.starts_with(name));
    if !log.starts_with("kafka:") || has("session_ms=") || has("protocol=consumer") {
        return log;
    }
    let sign = if log.contains('?') { '&' } else { '?' };
    format!("{log}{sign}session_ms={KAFKA_SESSION_MS}")
}

/// Whether an address of Kafka names a static member.
pub(super) fn is_static(log: &str) -> bool {
    has_setting(log, |setting| setting.starts_with("instance="))
}

fn has_setting(address: &str, is_it: impl FnMut(&str) -> bool) -> bool {
    let settings = address.split_once('?').map(|(_, settings)| settings);
    settings.is_some_and(|settings| settings.split('&').any(is_it))
}

#[cfg(test)]
mod tests {
    use super::super::Inputs;
    use super::super::key::Key;

    fn with(settings: &[(&str, &str)]) -> Inputs {
        let mut inputs = Inputs::default();
        for (name, value) in settings {
            let key = Key::find(name).expect("a key");
            inputs.flags.0.push((key, (*value).to_owned()));
        }
        inputs
    }

    #[test]
    fn settings_that_contradict_each_other_say_what_to_add() {
        for (settings, advice) in [
            (&[("serve.roles", "receive")][..], "--log nats://"),
            (
                &[("serve.roles", "center"), ("serve.log", "kafka://a:1")],
                "--registry zookeeper://",
            ),
            (
                &[
                    ("serve.roles", "center"),
                    ("serve.log", "nats://a:1"),
                    ("serve.registry", "local"),
                ],
                "--registry zookeeper://",
            ),
            (
                &[("serve.log", "kafka://a:1?replicas=3&instance=i")],
                "leave out instance=",
            ),
            (&[("serve.backup", "redis://a:1")], "--log nats://"),
            (
                &[
                    ("serve.backup", "redis://a:1"),
                    ("serve.log", "nats://a:1"),
                    ("serve.roles", "receive,worker"),
                ],
                "this process is receive,worker",
            ),
            (&[("serve.rpc_listen", "0.0.0.0:7071")], "--rpc-address"),
            (&[("serve.rpc_ca", "ca.pem")], "--rpc-key"),
        ] {
            let problems = with(settings).resolve().expect_err("a contradiction");
            let said = problems.to_string();
            assert!(said.contains("`serve."), "{settings:?}: {said}");
            assert!(said.contains(advice), "{settings:?}: {said}");
            assert_eq!(said.lines().count(), 2, "{said}");
        }
    }

    #[test]
    fn the_bus_of_a_cluster_is_that_of_its_log_unless_another_one_is_named() {
        let bus = |settings: &[(&str, &str)]| {
            let effective = with(settings).resolve().expect("nothing is wrong");
            effective.config.serve.bus
        };
        let log = ("serve.log", "nats://a:1");
        assert_eq!(bus(&[log]).as_deref(), Some("nats://a:1"));
        let other = bus(&[log, ("serve.bus", "kafka://b:2")]);
        assert_eq!(other.as_deref(), Some("kafka://b:2"));
    }

    #[test]
    fn a_center_on_kafka_is_missed_after_six_seconds_unless_the_address_says_otherwise() {
        for (log, session) in [
            ("kafka://a:1", "?session_ms=6000"),
            ("kafka://a:1?namespace=n", "&session_ms=6000"),
            ("kafka://a:1?session_ms=9000", ""),
            ("kafka://a:1?protocol=consumer", ""),
            ("nats://a:1", ""),
        ] {
            let expected = format!("{log}{session}");
            let effective = with(&[("serve.log", log)]).resolve().expect("right");
            let serve = effective.config.serve;
            assert_eq!(serve.log.as_ref(), Some(&expected));
            assert_eq!(serve.bus, serve.log);
            // One connection serves both.
            let both = with(&[("serve.log", log), ("serve.bus", log)]);
            let serve = both.resolve().expect("right").config.serve;
            assert_eq!((&serve.log, &serve.bus), (&serve.bus, &Some(expected)));
        }
    }
}

//! The table of all settings.

use std::time::Duration;

use super::Config;
use super::value::{self, CallbackBody, LogFormat, LogLevel, Reach};

/// The prefix of all environment variables that set a key.
pub(crate) const ENVIRONMENT_PREFIX: &str = "LANEWAY_";

/// One setting.
pub(crate) struct Key {
    /// The section and the name in it, as in the file: `serve.listen`.
    pub(crate) name: &'static str,
    /// The flag, without its dashes.
    pub(crate) flag: &'static str,
    /// What stands for the value in `--help`.
    pub(crate) placeholder: &'static str,
    pub(crate) help: &'static str,
    /// What is accepted, in the words of an error message: "expected …".
    pub(crate) accepts: &'static str,
    /// How it is written in TOML.
    pub(crate) form: Form,
    /// Reads the value from text. `None` if it is not acceptable.
    pub(crate) read: fn(&mut Config, &str) -> Option<()>,
    /// The value as text that [`Key::read`] accepts.
    pub(crate) show: fn(&Config) -> String,
}

/// The TOML type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Integer,
}

const HOUR: Duration = Duration::from_hours(1);
const YEAR: Duration = Duration::from_hours(365 * 24);

pub(crate) static KEYS: [Key; 21] = [
    Key {
        name: "serve.listen",
        flag: "listen",
        placeholder: "ADDRESS",
        help: "Where the HTTP server listens. Port 0 takes any free port",
        accepts: "an IP address and a port, such as 127.0.0.1:7070 or [::1]:7070",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.listen, text.parse().ok()),
        show: |config| config.serve.listen.to_string(),
    },
    Key {
        name: "serve.max_connections",
        flag: "max-connections",
        placeholder: "COUNT",
        help: "How many connections may be open at the same time; the next ones wait",
        accepts: "a whole number from 1 to 1000000",
        form: Form::Integer,
        read: |config, text| {
            let count = value::count(text, 1..=1_000_000);
            value::set(&mut config.serve.max_connections, count)
        },
        show: |config| config.serve.max_connections.to_string(),
    },
    Key {
        name: "serve.header_timeout",
        flag: "header-timeout",
        placeholder: "TIME",
        help: "How long a client may take to send a request head, or idle between two requests",
        accepts: "a time from 1ms to 1h, such as 500ms, 10s or 2m",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=HOUR);
            value::set(&mut config.serve.header_timeout, time)
        },
        show: |config| value::show_time(config.serve.header_timeout),
    },
    Key {
        name: "serve.write_timeout",
        flag: "write-timeout",
        placeholder: "TIME",
        help: "How long a client may leave its answer unread before it is cut off",
        accepts: "a time from 1ms to 1h, such as 500ms, 10s or 2m",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=HOUR);
            value::set(&mut config.serve.write_timeout, time)
        },
        show: |config| value::show_time(config.serve.write_timeout),
    },
    Key {
        name: "serve.shutdown_timeout",
        flag: "shutdown-timeout",
        placeholder: "TIME",
        help: "How long requests in flight may take to finish once the server is told to stop",
        accepts: "a time from 0s to 1h, such as 500ms, 10s or 2m",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::ZERO..=HOUR);
            value::set(&mut config.serve.shutdown_timeout, time)
        },
        show: |config| value::show_time(config.serve.shutdown_timeout),
    },
    Key {
        name: "serve.max_body",
        flag: "max-body",
        placeholder: "BYTES",
        help: "The largest request body; a larger one is answered with 413",
        accepts: "a whole number from 1024 to 268435456",
        form: Form::Integer,
        read: |config, text| {
            let bytes = value::count(text, 1_024..=256 << 20);
            value::set(&mut config.serve.max_body, bytes)
        },
        show: |config| config.serve.max_body.to_string(),
    },
    Key {
        name: "serve.data_dir",
        flag: "data-dir",
        placeholder: "DIRECTORY",
        help: "Where messages are kept. It is made if it is not there; one server owns it at a time",
        accepts: "the name of a directory",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.data_dir, value::path(text)),
        show: |config| config.serve.data_dir.display().to_string(),
    },
    Key {
        name: "serve.bus",
        flag: "bus",
        placeholder: "URL",
        help: "The bus that messages are published to; `none` is an embedded one in the data directory",
        accepts: "none, or the address of a bus, such as kafka://localhost:9092 or nats://localhost:4222",
        form: Form::Text,
        read: |config, text| {
            let address = |text: &str| text.contains(':').then(|| text.to_owned());
            value::set_optional(&mut config.serve.bus, text, address)
        },
        show: |config| value::show_optional(config.serve.bus.as_ref(), String::clone),
    },
    Key {
        name: "serve.sorakaq",
        flag: "sorakaq",
        placeholder: "SWITCH",
        help: "Whether the routes of SorakaQ (/sorakaq/msg/...) are served too",
        accepts: "on or off",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.sorakaq, value::switch(text)),
        show: |config| value::show_switch(config.serve.sorakaq),
    },
    Key {
        name: "delay.max_delay",
        flag: "max-delay",
        placeholder: "TIME",
        help: "The longest delay that is accepted",
        accepts: "none, or a time from 1s to 36500d, such as 10m, 12h or 30d",
        form: Form::Text,
        read: |config, text| {
            let time = |text: &str| value::time(text, Duration::from_secs(1)..=100 * YEAR);
            value::set_optional(&mut config.delay.longest, text, time)
        },
        show: |config| {
            value::show_optional(config.delay.longest.as_ref(), |time| {
                value::show_time(*time)
            })
        },
    },
    Key {
        name: "delay.retry",
        flag: "retry",
        placeholder: "TIMES",
        help: "The waits between attempts; after the last one a message is a dead letter",
        accepts: "none, or up to 32 times of at most 30d, such as 1s,10s,1m",
        form: Form::Text,
        read: |config, text| value::set(&mut config.delay.retry, value::waits(text)),
        show: |config| value::show_waits(&config.delay.retry),
    },
    Key {
        name: "delay.topic_retry",
        flag: "topic-retry",
        placeholder: "TIMES",
        help: "The waits between attempts of the messages of some topics",
        accepts: "none, or topics and their waits, such as `mail=1m,5m; orders=1s`",
        form: Form::Text,
        read: |config, text| value::set(&mut config.delay.topic_retry, value::waits_by_topic(text)),
        show: |config| value::show_waits_by_topic(&config.delay.topic_retry),
    },
    Key {
        name: "delay.keep_ended",
        flag: "keep-ended",
        placeholder: "TIME",
        help: "How long messages are kept that were delivered or withdrawn; dead ones stay",
        accepts: "a time from 1s to 365d, such as 10m, 12h or 30d",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_secs(1)..=YEAR);
            value::set(&mut config.delay.keep_ended, time)
        },
        show: |config| value::show_time(config.delay.keep_ended),
    },
    Key {
        name: "callback.allow",
        flag: "callback-allow",
        placeholder: "LIST",
        help: "Whom callbacks may reach beside public addresses; `auto` is this machine as long as \
               the server listens on a loopback address, and nobody otherwise",
        accepts: "auto, none, or ranges and hosts with commas, such as 10.0.0.0/8, hooks.internal",
        form: Form::Text,
        read: |config, text| value::set(&mut config.callback.allow, Reach::parse(text)),
        show: |config| config.callback.allow.show(),
    },
    Key {
        name: "callback.timeout",
        flag: "callback-timeout",
        placeholder: "TIME",
        help: "How long a receiver may take to answer, where the message does not say",
        accepts: "a time from 1ms to 5m, such as 500ms, 10s or 2m",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=Duration::from_mins(5));
            value::set(&mut config.callback.timeout, time)
        },
        show: |config| value::show_time(config.callback.timeout),
    },
    Key {
        name: "callback.per_host",
        flag: "callbacks-per-host",
        placeholder: "COUNT",
        help: "How many callbacks to one host may run at the same time",
        accepts: "a whole number from 1 to 10000",
        form: Form::Integer,
        read: |config, text| {
            value::set(
                &mut config.callback.per_host,
                value::count(text, 1..=10_000),
            )
        },
        show: |config| config.callback.per_host.to_string(),
    },
    Key {
        name: "callback.total",
        flag: "callbacks",
        placeholder: "COUNT",
        help: "How many callbacks may run at the same time",
        accepts: "a whole number from 1 to 100000",
        form: Form::Integer,
        read: |config, text| {
            value::set(&mut config.callback.total, value::count(text, 1..=100_000))
        },
        show: |config| config.callback.total.to_string(),
    },
    Key {
        name: "callback.secrets_file",
        flag: "callback-secrets-file",
        placeholder: "FILE",
        help: "A file with the secrets that callbacks are signed with, one `whsec_...` a line",
        accepts: "none, or the name of a file",
        form: Form::Text,
        read: |config, text| {
            value::set_optional(&mut config.callback.secrets_file, text, value::path)
        },
        show: |config| {
            let file = config.callback.secrets_file.as_ref();
            value::show_optional(file, |file| file.display().to_string())
        },
    },
    Key {
        name: "callback.body",
        flag: "callback-body",
        placeholder: "FORM",
        help: "What the body of a callback is: the payload as it was submitted, or a JSON object \
               with id, topic, due time, attempt, metadata and payload",
        accepts: "payload or envelope",
        form: Form::Text,
        read: |config, text| value::set(&mut config.callback.body, CallbackBody::parse(text)),
        show: |config| config.callback.body.name().to_owned(),
    },
    Key {
        name: "log.level",
        flag: "log-level",
        placeholder: "LEVEL",
        help: "How much is logged to standard error",
        accepts: "off, error, warn, info, debug or trace",
        form: Form::Text,
        read: |config, text| value::set(&mut config.log.level, LogLevel::parse(text)),
        show: |config| config.log.level.name().to_owned(),
    },
    Key {
        name: "log.format",
        flag: "log-format",
        placeholder: "FORMAT",
        help: "How log lines look: for people, or one JSON object a line",
        accepts: "human or json",
        form: Form::Text,
        read: |config, text| value::set(&mut config.log.format, LogFormat::parse(text)),
        show: |config| config.log.format.name().to_owned(),
    },
];

impl Key {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable of this key: `LANEWAY_SERVE__LISTEN`.
    pub(crate) fn variable(&self) -> String {
        let name = self.name.replace('.', "__").to_uppercase();
        format!("{ENVIRONMENT_PREFIX}{name}")
    }

    pub(crate) fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section.
    pub(crate) fn leaf(&self) -> &'static str {
        self.name
            .split_once('.')
            .map_or(self.name, |(_, leaf)| leaf)
    }

    /// The value as it is written in TOML.
    pub(crate) fn show_toml(&self, config: &Config) -> String {
        let text = (self.show)(config);
        match self.form {
            Form::Integer => text,
            Form::Text => format!("{text:?}"),
        }
    }

    /// The key whose name is nearest to one that nobody knows, if any is near.
    ///
    /// A name without its section, or in the wrong one, is near too.
    pub(crate) fn nearest(unknown: &str) -> Option<&'static Self> {
        let unknown_leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        KEYS.iter()
            .map(|key| {
                let whole = strsim::normalized_damerau_levenshtein(unknown, key.name);
                let leaf = strsim::normalized_damerau_levenshtein(unknown_leaf, key.leaf());
                // The whole name says more; the leaf decides only where the section is off.
                (key, whole.max(leaf - 0.01))
            })
            .filter(|(_, likeness)| *likeness >= 0.6)
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .map(|(key, _)| key)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

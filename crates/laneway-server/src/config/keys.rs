//! The table of all settings.

use std::time::Duration;

use super::Config;
use super::value::{self, LogFormat, LogLevel};

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

pub(crate) static KEYS: [Key; 7] = [
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
            Form::Text => format!("\"{text}\""),
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

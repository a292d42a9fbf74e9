//! How single values are read and shown.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use laneway_delay::callback::Allow;
use laneway_units::format_duration;

/// Stores a value that could be read.
pub(crate) fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

pub(crate) fn count(text: &str, range: RangeInclusive<u32>) -> Option<u32> {
    text.parse().ok().filter(|count| range.contains(count))
}

/// A number of bytes by the grammar of [`laneway_units`], within these bounds.
pub(crate) fn size(text: &str, range: RangeInclusive<u32>) -> Option<u32> {
    let bytes = laneway_units::parse_size(text).ok()?;
    u32::try_from(bytes)
        .ok()
        .filter(|size| range.contains(size))
}

/// A duration by the grammar of [`laneway_units`], within these bounds.
pub(crate) fn time(text: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
    let duration = laneway_units::parse_duration(text).ok()?;
    range.contains(&duration).then_some(duration)
}

/// The word for a setting that is not set.
const NONE: &str = "none";

/// Stores nothing for `none`, and otherwise what the reader makes of the text.
pub(crate) fn set_optional<T>(
    place: &mut Option<T>,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<()> {
    *place = if text == NONE {
        None
    } else {
        Some(read(text)?)
    };
    Some(())
}

pub(crate) fn show_optional<T>(value: Option<&T>, show: impl FnOnce(&T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// The word for a setting that is found out.
const AUTO: &str = "auto";

/// Stores nothing for `auto`, and otherwise what the reader makes of the text.
pub(crate) fn set_auto<T>(
    place: &mut Option<T>,
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Option<()> {
    *place = if text == AUTO {
        None
    } else {
        Some(read(text)?)
    };
    Some(())
}

pub(crate) fn show_auto(value: Option<&String>) -> String {
    value.map_or_else(|| AUTO.to_owned(), String::clone)
}

/// The address of a broker on a server.
pub(crate) fn broker(text: &str) -> Option<String> {
    let is_server = ["kafka://", "nats://"].iter();
    let mut is_server = is_server.map(|scheme| text.strip_prefix(scheme));
    is_server
        .any(|rest| rest.is_some_and(|rest| !rest.is_empty()))
        .then(|| text.to_owned())
}

/// The address of a Redis, or of a cluster of them.
pub(crate) fn redis(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let is_redis = matches!(
        scheme,
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster"
    );
    (is_redis && !rest.is_empty()).then(|| text.to_owned())
}

/// A name that can be part of others.
pub(crate) fn word(text: &str) -> Option<String> {
    named(text, "-_")
}

/// A name for people.
pub(crate) fn name(text: &str) -> Option<String> {
    named(text, "-_.")
}

fn named(text: &str, others: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    let is_name = (1..=64).contains(&text.len()) && text.chars().all(is_plain);
    is_name.then(|| text.to_owned())
}

/// A host or an address, and a port that others can connect to.
pub(crate) fn host_and_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let usable = !host.is_empty() && !host.contains(['/', '@', ' ', ',']) && port != 0;
    usable.then(|| text.to_owned())
}

/// The name of a file or directory. Control characters in one are always a mistake.
pub(crate) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.into())
}

/// Waits between attempts, such as `1s,10s,1m`. `none` is a list without any.
pub(crate) fn waits(text: &str) -> Option<Vec<Duration>> {
    const LONGEST: Duration = Duration::from_hours(30 * 24);
    if text == NONE {
        return Some(Vec::new());
    }
    let waits: Option<Vec<Duration>> = text
        .split(',')
        .map(|wait| time(wait.trim(), Duration::ZERO..=LONGEST))
        .collect();
    waits.filter(|waits| waits.len() <= 32)
}

pub(crate) fn show_waits(waits: &[Duration]) -> String {
    if waits.is_empty() {
        return NONE.to_owned();
    }
    let waits: Vec<String> = waits.iter().copied().map(format_duration).collect();
    waits.join(",")
}

/// Waits by topic, such as `mail=1m,5m; orders=1s`.
pub(crate) fn waits_by_topic(text: &str) -> Option<BTreeMap<String, Vec<Duration>>> {
    if text == NONE {
        return Some(BTreeMap::new());
    }
    text.split(';')
        .map(|entry| {
            let (topic, waits) = entry.split_once('=')?;
            let topic = topic.trim();
            let usable = !topic.is_empty() && !topic.contains(char::is_control);
            Some((topic.to_owned(), self::waits(waits.trim())?)).filter(|_| usable)
        })
        .collect()
}

pub(crate) fn show_waits_by_topic(waits: &BTreeMap<String, Vec<Duration>>) -> String {
    if waits.is_empty() {
        return NONE.to_owned();
    }
    let entries: Vec<String> = waits
        .iter()
        .map(|(topic, waits)| format!("{topic}={}", show_waits(waits)))
        .collect();
    entries.join("; ")
}

/// Files by host, such as `a.example=a.secrets; b.example:8443=b.secrets`.
pub(crate) fn files_by_host(text: &str) -> Option<BTreeMap<String, PathBuf>> {
    if text == NONE {
        return Some(BTreeMap::new());
    }
    text.split(';')
        .map(|entry| {
            let (host, file) = entry.split_once('=')?;
            let host = host.trim().to_ascii_lowercase();
            let usable = !host.is_empty() && !host.contains(['/', '@', ' ']);
            Some((host, path(file.trim())?)).filter(|_| usable)
        })
        .collect()
}

pub(crate) fn show_files_by_host(files: &BTreeMap<String, PathBuf>) -> String {
    if files.is_empty() {
        return NONE.to_owned();
    }
    let entries: Vec<String> = files
        .iter()
        .map(|(host, file)| format!("{host}={}", file.display()))
        .collect();
    entries.join("; ")
}

/// `on` or `off`.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

pub(crate) fn show_switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Whom callbacks may reach beyond public addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This machine, if only this machine reaches the server; nothing otherwise.
    Auto,
    /// What the operator says.
    Listed(Allow),
}

impl Reach {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            NONE => Some(Self::Listed(Allow::nothing())),
            list => list.parse().ok().map(Self::Listed),
        }
    }

    pub(crate) fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Listed(allow) if allow.is_empty() => NONE.to_owned(),
            Self::Listed(allow) => allow.to_string(),
        }
    }
}

/// Names of this server. A request for any other name is refused, since a page can make a name of its own resolve
/// to this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostNames(Vec<String>);

impl HostNames {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == NONE {
            return Some(Self::default());
        }
        let usable = |name: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !name.is_empty() && name.len() <= 253 && name.bytes().all(known)
        };
        let names = text.split(',').map(|name| {
            let name = name.trim().to_ascii_lowercase();
            usable(&name).then_some(name)
        });
        names.collect::<Option<Vec<String>>>().map(Self)
    }

    pub(crate) fn show(&self) -> String {
        if self.0.is_empty() {
            return NONE.to_owned();
        }
        self.0.join(", ")
    }

    /// Whether it is one of them. In lower case.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == text)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Levels of parts of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFilter(Vec<(String, LogLevel)>);

impl LogFilter {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == NONE {
            return Some(Self::default());
        }
        let entries = text.split(',').map(|entry| {
            let (part, level) = entry.trim().split_once('=')?;
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
            let usable = !part.is_empty() && part.bytes().all(known);
            Some((part.to_owned(), LogLevel::parse(level)?)).filter(|_| usable)
        });
        entries.collect::<Option<_>>().map(Self)
    }

    pub(crate) fn show(&self) -> String {
        if self.0.is_empty() {
            return NONE.to_owned();
        }
        let show = |(part, level): &(String, LogLevel)| format!("{part}={}", level.name());
        self.0.iter().map(show).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn entries(&self) -> &[(String, LogLevel)] {
        &self.0
    }
}

/// What a log line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

impl LogFormat {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Human, Self::Json]
            .into_iter()
            .find(|format| format.name() == text)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_shown_as_they_are_read() {
        for text in ["none", "1s", "1s,10s,1m,5m,50m", "0s,1d"] {
            assert_eq!(show_waits(&waits(text).expect(text)), text);
        }
        for text in ["none", "mail=1m,5m", "mail=none; orders=1s,2s"] {
            assert_eq!(
                show_waits_by_topic(&waits_by_topic(text).expect(text)),
                text
            );
        }
    }

    #[test]
    fn waits_that_cannot_be_meant_are_refused() {
        for text in ["", "1", "1s,", "1s;2s", "31d", &["1s"; 33].join(",")] {
            assert_eq!(waits(text), None, "{text}");
        }
        for text in ["", "mail", "=1s", "mail=", "mail=1s;", "mail:1s"] {
            assert_eq!(waits_by_topic(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_hosts_are_shown_as_they_are_read() {
        for text in ["none", "a.example", "a.example, laneway"] {
            assert_eq!(HostNames::parse(text).expect(text).show(), text);
        }
        for text in ["", "a,", "http://a", "a:7070", "*", "a b"] {
            assert_eq!(HostNames::parse(text), None, "{text}");
        }
    }

    #[test]
    fn reach_is_shown_as_it_is_read() {
        for text in ["auto", "none", "127.0.0.0/8, hooks.internal"] {
            assert_eq!(Reach::parse(text).expect(text).show(), text);
        }
        assert_eq!(Reach::parse("10.0.0.1/8"), None);
    }
}

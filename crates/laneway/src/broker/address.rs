//! What the addresses of servers have in common: `scheme://user:password@one:1,two:2?key=value`.

use std::str::FromStr;
use std::time::Duration;

use super::options::BrokerOptionsError;

/// An address, taken apart.
pub(super) struct Address<'a> {
    /// What stands before an `@`.
    pub(super) user: Option<&'a str>,
    /// `host:port`, each.
    pub(super) servers: Vec<String>,
    /// What stands after a `?`.
    pub(super) query: &'a str,
}

impl<'a> Address<'a> {
    /// Takes an address apart. Lists in which each server has its own scheme are common.
    pub(super) fn read(
        url: &'a str,
        scheme: &'static str,
        port: u16,
    ) -> Result<Self, BrokerOptionsError> {
        let rest = without_scheme(url, scheme);
        let after_name = url.strip_prefix(scheme);
        if let Some(after) = after_name.and_then(|rest| rest.strip_prefix(':'))
            && !after.starts_with("//")
        {
            let rest = after.to_owned();
            return Err(BrokerOptionsError::Scheme { scheme, rest });
        }
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let hosts = hosts.split(',').filter(|host| !host.is_empty());
        let servers: Result<Vec<_>, _> = hosts.map(|host| server(host, scheme, port)).collect();
        Ok(Self {
            user,
            servers: servers?,
            query,
        })
    }
}

fn without_scheme<'a>(text: &'a str, scheme: &str) -> &'a str {
    let rest = text.strip_prefix(scheme);
    rest.and_then(|rest| rest.strip_prefix("://"))
        .unwrap_or(text)
}

/// A server as `host:port`.
fn server(text: &str, scheme: &str, port: u16) -> Result<String, BrokerOptionsError> {
    let host = without_scheme(text, scheme);
    let wrong = || BrokerOptionsError::Server(text.to_owned());
    let (name, port) = match host.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((name, port)) if !port.contains(']') => (name, port.parse().map_err(|_| wrong())?),
        _ => (host, port),
    };
    let special = |c: char| c.is_whitespace() || "/@?#".contains(c);
    let is_name = !name.is_empty() && !name.contains(special);
    let is_address = name.starts_with('[') && name.ends_with(']');
    if is_name && (is_address || !name.contains(':')) {
        Ok(format!("{name}:{port}"))
    } else {
        Err(wrong())
    }
}

/// The settings of an address, each once.
pub struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    /// Reads `key=value&key=value`, of keys that `known` has.
    pub(super) fn read(
        query: &str,
        known: impl Fn(&str) -> Result<&'static str, BrokerOptionsError>,
    ) -> Result<Self, BrokerOptionsError> {
        let mut parameters: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = known(key)?;
            if parameters.iter().any(|(other, _)| *other == key) {
                return Err(BrokerOptionsError::Twice(key));
            }
            parameters.push((key, decoded(value)));
        }
        Ok(Self(parameters))
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) fn take_parsed<T: FromStr>(
        &mut self,
        key: &'static str,
        expected: &str,
    ) -> Result<Option<T>, BrokerOptionsError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let parsed = value.parse();
        let parsed = parsed.map_err(|_| BrokerOptionsError::value(key, &value, expected));
        parsed.map(Some)
    }

    pub(super) fn take_millis(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Duration>, BrokerOptionsError> {
        let millis = self.take_parsed(key, "a number of milliseconds")?;
        Ok(millis.map(Duration::from_millis))
    }

    /// Takes a setting that is one of a few words.
    #[cfg(feature = "kafka")]
    pub(super) fn take_word<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
        expected: &str,
    ) -> Result<Option<T>, BrokerOptionsError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match words.iter().find(|(word, _)| *word == value) {
            Some((_, meant)) => Ok(Some(*meant)),
            None => Err(BrokerOptionsError::value(key, &value, expected)),
        }
    }
}

/// Text with `%40` and the like read. What is no such thing stands for itself.
pub(super) fn decoded(text: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(text);
    decoded.decode_utf8_lossy().into_owned()
}

//! What the addresses of servers have in common: `scheme://user:password@one:1,two:2?key=value`.

use std::str::FromStr;

/// An address, taken apart.
pub(super) struct Address<'a> {
    /// What stands before an `@`.
    pub(super) user: Option<&'a str>,
    /// `host:port`, each.
    pub(super) servers: Vec<String>,
    pub(super) settings: Settings,
}

/// Why an address, or one of its settings, cannot be meant. Never says a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressError {
    /// A server is not an address.
    Server(String),
    /// There is no such setting.
    UnknownKey(String),
    /// A value cannot be meant.
    Value {
        key: &'static str,
        value: String,
        expected: &'static str,
    },
    /// A setting is there twice.
    Twice(&'static str),
}

impl<'a> Address<'a> {
    /// Takes an address apart. Lists in which each server has its own scheme are common.
    pub(super) fn read(
        url: &'a str,
        scheme: &str,
        port: u16,
        keys: &[&'static str],
    ) -> Result<Self, AddressError> {
        let rest = url.strip_prefix(scheme).unwrap_or(url);
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
            settings: Settings::read(query, keys)?,
        })
    }
}

/// A server as `host:port`.
fn server(text: &str, scheme: &str, port: u16) -> Result<String, AddressError> {
    let host = text.strip_prefix(scheme).unwrap_or(text);
    let wrong = || AddressError::Server(text.to_owned());
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
pub(super) struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn read(query: &str, keys: &[&'static str]) -> Result<Self, AddressError> {
        let mut settings: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(key) = keys.iter().find(|known| **known == key) else {
                return Err(AddressError::UnknownKey(key.to_owned()));
            };
            if settings.iter().any(|(known, _)| known == key) {
                return Err(AddressError::Twice(key));
            }
            settings.push((key, decoded(value)));
        }
        Ok(Self(settings))
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    pub(super) fn take_parsed<T: FromStr>(
        &mut self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, AddressError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let parsed = value.parse().map_err(|_| AddressError::Value {
            key,
            value,
            expected,
        });
        parsed.map(Some)
    }
}

/// Text with `%40` and the like read. What is no such thing stands for itself.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

//! What an operator allows beyond public addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::network::{Network, NetworkError};

/// Ranges and hosts that may be called although they are not public.
///
/// It is written as a list with commas. An entry that looks like an address or a range is one; any
/// other entry is the name of a host, and trusts whatever that name resolves to.
///
/// ```
/// use laneway_delay::callback::Allow;
///
/// let allow: Allow = "127.0.0.0/8, ::1, hooks.internal".parse()?;
/// assert_eq!(allow.to_string(), "127.0.0.0/8, ::1/128, hooks.internal");
/// # Ok::<(), laneway_delay::callback::guard::AllowError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    networks: Vec<Network>,
    hosts: Vec<String>,
}

impl Allow {
    /// Only public addresses.
    #[must_use]
    pub fn nothing() -> Self {
        Self::default()
    }

    /// This machine itself, for trying things out.
    #[must_use]
    pub fn loopback() -> Self {
        Self {
            networks: vec![
                Network::v4([127, 0, 0, 0], 8),
                Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128),
            ],
            hosts: Vec::new(),
        }
    }

    /// Whether nothing is allowed beyond public addresses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.hosts.is_empty()
    }

    pub(super) fn address(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }

    pub(super) fn host(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.hosts
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(host))
    }
}

/// An entry that is neither a range nor a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowError {
    /// It looks like a range and is none.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// It is not the name of a host.
    #[error(
        "`{0}` is not the name of a host: write the bare name, such as hooks.internal, without scheme, port and path"
    )]
    Host(String),
}

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Self, AllowError> {
        let mut allow = Self::default();
        let entries = text.split(',').map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let digits_and_dots = |byte: u8| byte.is_ascii_digit() || byte == b'.';
            let like_an_address = entry.contains([':', '/']) || entry.bytes().all(digits_and_dots);
            if like_an_address {
                allow.networks.push(entry.parse()?);
            } else if let Ok(url::Host::Domain(host)) = url::Host::parse(entry) {
                allow
                    .hosts
                    .push(host.strip_suffix('.').unwrap_or(&host).to_owned());
            } else {
                return Err(AllowError::Host(entry.to_owned()));
            }
        }
        Ok(allow)
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks = self.networks.iter().map(ToString::to_string);
        let entries: Vec<String> = networks.chain(self.hosts.iter().cloned()).collect();
        f.write_str(&entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_it_is_shown() {
        for text in ["", "10.0.0.0/8", "10.0.0.0/8, fd00::/8, a.b, localhost"] {
            let allow: Allow = text.parse().expect(text);
            assert_eq!(allow.to_string(), text);
            assert_eq!(allow.is_empty(), text.is_empty());
        }
    }

    #[test]
    fn what_is_neither_a_range_nor_a_host_is_refused() {
        for text in [
            "10.0.0.0/8/8",
            "http://x",
            "a b",
            "10.1.0.0/8",
            "x:80",
            "0x7f.1",
            "a/b",
        ] {
            assert!(text.parse::<Allow>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_hosts_ignore_case_and_the_last_dot() {
        let allow: Allow = "Hooks.Internal.".parse().expect("a host");
        assert!(allow.host("hooks.internal") && allow.host("HOOKS.internal."));
        assert!(!allow.host("x.hooks.internal") && !allow.host("internal"));
    }
}

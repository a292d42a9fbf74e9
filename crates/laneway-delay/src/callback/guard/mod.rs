//! The address guard against SSRF (server-side request forgery): which addresses may be called.
//!
//! A callback URL comes from a client, and the request is made from inside the operator's network. Without a guard a
//! client could reach what only this network reaches: a metadata service, a database, an admin page on loopback.
//!
//! A URL is parsed once, and what was parsed is what is sent, so there are no two parsers to
//! disagree. A literal address, however it is written (`2130706433`, `0x7f.1`, `0177.0.0.1`, full-width digits,
//! `[::ffff:127.0.0.1]`), is an address after parsing and is checked as one, when the message comes in and
//! again when it is sent. The name of a host is resolved by our own resolver when a connection is
//! made; every address it has is checked, and the connection goes to one of exactly those. A name
//! that resolves to something else a moment later has no moment in which that could matter.
//!
//! If one address of a name is forbidden the name is refused as a whole: a name that is public and
//! private at once is a mistake or an attack.
//!
//! What the guard cannot see: a NAT64 prefix of the operator's own, and a public address that a
//! router sends to a private place. Those belong in the firewall.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `network`, `special` | ranges of addresses; those that are not ordinary public ones |
//! | `allow` | what an operator allows beyond public addresses |
//! | `resolve` | names become addresses here and nowhere else |
//! | `lookups` | one DNS lookup of a name at a time, and its result for a short while |

mod allow;
mod lookups;
mod network;
mod resolve;
mod special;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use url::{Host, Url};

pub use allow::{Allow, AllowError};
pub use network::{Network, NetworkError};
pub(super) use resolve::Checked;
pub use resolve::{Resolve, Resolving, System};

/// A URL longer than this is refused.
pub const MAX_URL_BYTES: usize = 8_192;

/// Decides which URLs and addresses may be called. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    allow: Arc<Allow>,
}

/// A URL that has passed the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    url: Url,
}

impl Destination {
    /// The URL, in the form in which it is sent.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Host and port: what shares slots, a circuit, kept connections and secrets.
    pub(super) fn host_and_port(&self) -> Cow<'_, str> {
        crate::host::host_and_port(self.url.as_str())
    }

    pub(super) fn into_url(self) -> Url {
        self.url
    }
}

/// Why a URL may not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It cannot be parsed.
    #[error("it is not an absolute URL ({0}): write it like https://example.com/path")]
    Syntax(url::ParseError),
    /// It is too long.
    #[error("it has {0} bytes, more than {MAX_URL_BYTES}: put what is long into the payload")]
    TooLong(usize),
    /// Neither http nor https.
    #[error("its scheme is `{0}`: only http and https can be called")]
    Scheme(String),
    /// A user name or a password in the URL.
    #[error("it has a user name or a password: send credentials in a header, which is not logged")]
    Credentials,
    /// A port where something else than HTTP lives.
    #[error(
        "its port is {0}, which belongs to another protocol: let the receiver listen elsewhere"
    )]
    Port(u16),
    /// It names an address that is not public.
    #[error(
        "{address} is not a public address ({purpose}): the operator can allow it with callback.allow"
    )]
    Address {
        /// The address that is not public.
        address: IpAddr,
        /// What it is reserved for.
        purpose: &'static str,
    },
    /// Its host has an address that is not public.
    #[error(
        "{host} resolves to {address}, which is not a public address ({purpose}): the operator can \
         allow it with callback.allow"
    )]
    Resolved {
        /// The name that was resolved.
        host: String,
        /// The address that is not public.
        address: IpAddr,
        /// What it is reserved for.
        purpose: &'static str,
    },
}

impl Guard {
    /// A guard that allows public addresses, and what is in the list.
    #[must_use]
    pub fn new(allow: Allow) -> Self {
        Self {
            allow: Arc::new(allow),
        }
    }

    /// Parses a URL and checks all that can be checked without asking the network.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the URL. The address that a name resolves to is not known here; it
    /// is checked when the connection is made.
    pub fn check(&self, url: &str) -> Result<Destination, Refused> {
        if url.len() > MAX_URL_BYTES {
            return Err(Refused::TooLong(url.len()));
        }
        let url = Url::parse(url).map_err(Refused::Syntax)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::Credentials);
        }
        if let Some(port) = url
            .port()
            .filter(|port| NOT_HTTP.binary_search(port).is_ok())
        {
            return Err(Refused::Port(port));
        }
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) => None,
            None => return Err(Refused::Syntax(url::ParseError::EmptyHost)),
        };
        if let Some((address, purpose)) = literal.and_then(|address| self.objection(address)) {
            return Err(Refused::Address { address, purpose });
        }
        Ok(Destination { url })
    }

    /// Checks every address that a name has.
    ///
    /// # Errors
    ///
    /// Names the first address that may not be called.
    pub fn check_resolved(&self, host: &str, addresses: &[IpAddr]) -> Result<(), Refused> {
        if self.allow.host(host) {
            return Ok(());
        }
        let mut objections = addresses
            .iter()
            .filter_map(|address| self.objection(*address));
        match objections.next() {
            None => Ok(()),
            Some((address, purpose)) => Err(Refused::Resolved {
                host: host.to_owned(),
                address,
                purpose,
            }),
        }
    }

    fn objection(&self, address: IpAddr) -> Option<(IpAddr, &'static str)> {
        let address = special::canonical(address);
        let purpose = special::purpose(address)?;
        (!self.allow.address(address)).then_some((address, purpose))
    }
}

/// Ports on which something else than HTTP listens, sorted: those that browsers refuse too, so
/// that a request cannot be taken for mail or a command.
const NOT_HTTP: [u16; 83] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101,
    102, 103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427,
    465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990,
    993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667,
    6668, 6669, 6679, 6697, 10_080,
];

#[cfg(test)]
mod tests;

//! Ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, such as `10.0.0.0/8` or `fd00::/8`.
///
/// ```
/// use laneway_delay::callback::guard::Network;
///
/// let network: Network = "192.168.7.0/24".parse()?;
/// assert!(network.contains("192.168.7.9".parse()?));
/// assert!(!network.contains("192.168.8.9".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    pub(super) const fn v4(address: [u8; 4], prefix: u8) -> Self {
        let address = IpAddr::V4(Ipv4Addr::from_octets(address));
        Self { address, prefix }
    }

    pub(super) const fn v6(address: [u16; 8], prefix: u8) -> Self {
        let address = IpAddr::V6(Ipv6Addr::from_segments(address));
        Self { address, prefix }
    }

    /// Whether an address is in this range. A v4 address is never in a v6 range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Text that is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Neither an address nor a range.
    #[error("`{0}` is not a range of addresses: write it like 10.0.0.0/8 or fd00::/8")]
    Syntax(String),
    /// The address has bits beyond the prefix, so one of the two is a mistake.
    #[error("`{given}` has bits set beyond /{prefix}: did you mean {meant}/{prefix}?")]
    HostBits {
        /// What was given.
        given: String,
        /// The length of the prefix.
        prefix: u8,
        /// The address with those bits cleared.
        meant: IpAddr,
    },
}

impl FromStr for Network {
    type Err = NetworkError;

    /// A single address is a range of one.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let syntax = || NetworkError::Syntax(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| syntax())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                let prefix = digits.parse().ok().filter(|prefix| *prefix <= longest);
                prefix.ok_or_else(syntax)?
            }
            Some(_) => return Err(syntax()),
        };
        let meant = first_of(address, prefix);
        if meant != address {
            let given = text.to_owned();
            return Err(NetworkError::HostBits {
                given,
                prefix,
                meant,
            });
        }
        Ok(Self { address, prefix })
    }
}

fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_in_it_and_their_neighbours_are_not() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                ["10.0.0.0", "10.255.255.255"],
                ["9.255.255.255", "11.0.0.0"],
            ),
            (
                "172.16.0.0/12",
                ["172.16.0.0", "172.31.255.255"],
                ["172.15.255.255", "172.32.0.0"],
            ),
            (
                "fe80::/10",
                ["fe80::", "febf:ffff::1"],
                ["fe7f::", "fec0::"],
            ),
            ("::1", ["::1", "::1"], ["::", "::2"]),
        ] {
            let network: Network = network.parse().expect(network);
            for address in inside {
                assert!(
                    network.contains(address.parse().expect(address)),
                    "{network} {address}"
                );
            }
            for address in outside {
                assert!(
                    !network.contains(address.parse().expect(address)),
                    "{network} {address}"
                );
            }
        }
    }

    #[test]
    fn everything_is_in_a_range_without_a_prefix() {
        let all: Network = "0.0.0.0/0".parse().expect("a range");
        assert!(all.contains("255.1.2.3".parse().expect("an address")));
        assert!(!all.contains("::1".parse().expect("an address")));
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "",
            "10",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "localhost/8",
        ] {
            assert!(
                matches!(text.parse::<Network>(), Err(NetworkError::Syntax(_))),
                "{text}"
            );
        }
        let error = "10.1.2.3/8".parse::<Network>().expect_err("host bits");
        assert_eq!(
            error.to_string(),
            "`10.1.2.3/8` has bits set beyond /8: did you mean 10.0.0.0/8?"
        );
    }
}

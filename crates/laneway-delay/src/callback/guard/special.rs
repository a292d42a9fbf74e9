//! Addresses that are not ordinary public ones.
//!
//! The tables follow the IANA registries of special-purpose addresses for IPv4 and IPv6. Also
//! those entries that are globally reachable by their definition are in here (anycast relays, AS112 sinks): no
//! receiver lives there. Beside the registries there are multicast, deprecated site-local addresses, and one
//! address inside a public range that belongs to the machine's host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::network::Network;

/// Why an address is special; `None` for an ordinary public one.
///
/// Where an address carries another one, which a gateway would unpack, that one counts too.
pub(super) fn purpose(address: IpAddr) -> Option<&'static str> {
    let table: &[(Network, &str)] = match address {
        IpAddr::V4(_) => &V4,
        IpAddr::V6(_) => &V6,
    };
    let listed = table.iter().find(|(network, _)| network.contains(address));
    if let Some((_, purpose)) = listed {
        return Some(purpose);
    }
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) if NAT64.contains(IpAddr::V6(address)) => {
            purpose(IpAddr::V4(last_32_bits(address)))
        }
        IpAddr::V6(address) => (!GLOBAL_UNICAST.contains(IpAddr::V6(address)))
            .then_some("outside the range of global unicast addresses"),
    }
}

/// The form in which an address is checked: one that a socket treats as IPv4 is IPv4.
pub(super) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn last_32_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Networks without IPv4 reach all of it through this prefix, so the address inside decides.
const NAT64: Network = Network::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const GLOBAL_UNICAST: Network = Network::v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const V4: [(Network, &str); 18] = [
    (Network::v4([0, 0, 0, 0], 8), "this network"),
    (Network::v4([10, 0, 0, 0], 8), "private"),
    (Network::v4([100, 64, 0, 0], 10), "shared by a carrier"),
    (Network::v4([127, 0, 0, 0], 8), "loopback"),
    (
        Network::v4([168, 63, 129, 16], 32),
        "the host of a virtual machine",
    ),
    (
        Network::v4([169, 254, 0, 0], 16),
        "link-local, where clouds keep their metadata",
    ),
    (Network::v4([172, 16, 0, 0], 12), "private"),
    (Network::v4([192, 0, 0, 0], 24), "protocol assignments"),
    (Network::v4([192, 0, 2, 0], 24), "documentation"),
    (Network::v4([192, 31, 196, 0], 24), "AS112"),
    (Network::v4([192, 52, 193, 0], 24), "multicast tunnels"),
    (Network::v4([192, 88, 99, 0], 24), "6to4 relays"),
    (Network::v4([192, 168, 0, 0], 16), "private"),
    (Network::v4([192, 175, 48, 0], 24), "AS112"),
    (Network::v4([198, 18, 0, 0], 15), "benchmarks"),
    (Network::v4([198, 51, 100, 0], 24), "documentation"),
    (Network::v4([203, 0, 113, 0], 24), "documentation"),
    // Multicast, reserved and broadcast.
    (Network::v4([224, 0, 0, 0], 3), "multicast or reserved"),
];

const V6: [(Network, &str); 17] = [
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible"),
    (
        Network::v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96),
        "IPv4-translated",
    ),
    (
        Network::v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),
        "local NAT64",
    ),
    (
        Network::v6([0x100, 0, 0, 0, 0, 0, 0, 0], 63),
        "discard or dummy",
    ),
    // Teredo, benchmarks, ORCHID, drone tags and others.
    (Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    (
        Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        "protocol assignments",
    ),
    (
        Network::v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
        "documentation",
    ),
    (Network::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (
        Network::v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48),
        "AS112",
    ),
    (
        Network::v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
        "documentation",
    ),
    (
        Network::v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16),
        "segment routing",
    ),
    (Network::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private"),
    (Network::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (Network::v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (Network::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Option<&'static str> {
        purpose(canonical(address.parse().expect(address)))
    }

    #[test]
    fn public_addresses_are_ordinary() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700::1111",
            "2a00::1",
            "2001:db7:ffff::1",
            "2001:db9::1",
            "2003::1",
            "3ffe::1",
            "64:ff9b::1.1.1.1",
            "::ffff:1.1.1.1",
        ] {
            assert_eq!(of(address), None, "{address}");
        }
    }

    /// The first and the last address of every entry of both registries.
    #[test]
    fn both_ends_of_every_special_range_are_special() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.8",
            "192.0.0.9",
            "192.0.0.10",
            "192.0.0.170",
            "192.0.0.192",
            "192.0.0.255",
            "192.0.2.0",
            "192.0.2.255",
            "192.31.196.0",
            "192.31.196.255",
            "192.52.193.0",
            "192.52.193.255",
            "192.88.99.0",
            "192.88.99.2",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "192.175.48.0",
            "192.175.48.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "198.51.100.255",
            "203.0.113.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.254",
            "255.255.255.255",
            "::",
            "::1",
            "::2",
            "::ffff:ffff",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b:1::",
            "64:ff9b:1:ffff::1",
            "100::",
            "100::ffff:ffff:ffff:ffff",
            "100:0:0:1::",
            "2001::",
            "2001:0:ffff::",
            "2001:1::1",
            "2001:1::2",
            "2001:1::3",
            "2001:2::",
            "2001:3::1",
            "2001:4:112::",
            "2001:10::",
            "2001:20::",
            "2001:30::",
            "2001:1ff:ffff::",
            "2001:db8::",
            "2001:db8:ffff::",
            "2002::",
            "2002:7f00:1::",
            "2002:ffff::",
            "2620:4f:8000::",
            "2620:4f:8000:ffff::",
            "3fff::",
            "3fff:fff::",
            "5f00::",
            "5f00:ffff::",
            "fc00::",
            "fd00:ec2::254",
            "fdff:ffff::",
            "fe80::",
            "fe80::a9fe:a9fe",
            "febf:ffff::",
            "fec0::",
            "feff::",
            "ff00::",
            "ff02::1",
            "ffff::",
            "4000::",
            "8000::1",
            "e000::1",
            "200::1",
            "64:ff9b:0:1::",
        ] {
            assert!(of(address).is_some(), "{address}");
        }
    }

    #[test]
    fn an_address_inside_another_one_counts() {
        for address in [
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::255.255.255.255",
            "64:ff9b::0.0.0.0",
        ] {
            assert!(of(address).is_some(), "{address}");
        }
    }
}

//! Free loopback ports.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::ensure;

/// Below the ports that the kernel hands to outgoing connections (32768 and up), so that nobody
/// takes a port in the moment between this check and the server's start, or while a test has its
/// server down for a restart.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
/// No divisor in common with COUNT, so that every port is visited once.
const STRIDE: u32 = 7_919;

/// As many different ports that nobody listens on.
pub(crate) fn free(count: usize) -> anyhow::Result<Vec<u16>> {
    // Starting from a different place each time keeps two projects' servers apart.
    let start = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.subsec_micros());
    // Held until all are found, so that none is found twice.
    let held: Vec<(u16, TcpListener)> = (0..u32::from(COUNT))
        .filter_map(|step| {
            let offset = (start + step * STRIDE) % u32::from(COUNT);
            let port = FIRST + u16::try_from(offset).ok()?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
            Some((port, listener))
        })
        .take(count)
        .collect();
    ensure!(
        held.len() == count,
        "fewer than {count} free loopback ports from {FIRST} on"
    );
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports = free(6).unwrap();
        let mut held = Vec::new();
        for port in ports {
            // Binding the same port twice would fail here.
            held.push(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
        }
    }

    #[test]
    fn a_port_in_use_is_not_offered() {
        let taken = free(1).unwrap()[0];
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
        assert!(!free(64).unwrap().contains(&taken));
    }
}

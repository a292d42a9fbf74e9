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

    /// Free ports, taken. A port that is free may be tried by the other test just then, which does the same.
    fn taken(count: usize) -> Vec<(u16, TcpListener)> {
        for _ in 0..100 {
            let taken = free(count).unwrap().into_iter().map(|port| {
                // Binding the same port twice would fail here.
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
                Some((port, listener))
            });
            if let Some(taken) = taken.collect() {
                return taken;
            }
        }
        panic!("ports that are free cannot be bound");
    }

    #[test]
    fn ports_differ_and_can_be_bound() {
        assert_eq!(taken(6).len(), 6);
    }

    #[test]
    fn a_port_in_use_is_not_offered() {
        let taken = taken(1);
        let offered = free(64).unwrap();
        assert!(!offered.contains(&taken[0].0));
    }
}

//! Ports for servers of a test's own.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below those that the system gives to outgoing connections, so that none of these takes a port between this check and
/// the start of its server, or while a test has its server down. And below those of the servers that all tests share.
const FIRST: u16 = 10_000;
const COUNT: u32 = 10_000;
/// No divisor in common with `COUNT`, so that every port is visited once.
const STRIDE: u32 = 7_919;

/// As many different ports that nothing listens on. No other call of this process is given them.
pub(crate) fn free<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    /// Other processes begin elsewhere.
    static START: LazyLock<u32> = LazyLock::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let moment = now.map_or(0, |now| now.subsec_nanos());
        (moment ^ std::process::id().wrapping_mul(STRIDE)) % COUNT
    });
    let mut found = [0; N];
    let mut next = 0;
    while next < N {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(step < COUNT, "no port is free");
        let offset = (*START + step * STRIDE) % COUNT;
        let port = FIRST + u16::try_from(offset).expect("it is below 10,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            found[next] = port;
            next += 1;
        }
    }
    found
}

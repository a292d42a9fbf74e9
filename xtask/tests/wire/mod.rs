//! A plain connection to a server: the smoke tests speak each protocol by hand, so that a failure
//! is the server's and never a client library's.

use std::io::{BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);

/// Connects to the first server that `address` names: `host:port`, as a URL or alone, one or many.
pub(crate) fn connect(address: &str) -> BufReader<TcpStream> {
    let first = address.split(',').next().unwrap_or(address);
    let without_scheme = first.split_once("://").map_or(first, |(_, rest)| rest);
    let host = without_scheme.split('/').next().unwrap_or(without_scheme);
    let socket = host
        .to_socket_addrs()
        .unwrap_or_else(|error| panic!("{address:?} does not name a host and a port: {error}"))
        .next()
        .unwrap_or_else(|| panic!("{address:?} has no network address"));
    let stream = TcpStream::connect_timeout(&socket, PATIENCE)
        .unwrap_or_else(|error| panic!("nothing answers at {address}: {error}"));
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a time-out above zero");
    stream
        .set_write_timeout(Some(PATIENCE))
        .expect("a time-out above zero");
    BufReader::new(stream)
}

/// Sends bytes as they are.
pub(crate) fn send(wire: &mut BufReader<TcpStream>, bytes: &[u8]) {
    wire.get_mut()
        .write_all(bytes)
        .expect("the server takes what is sent");
}

//! Health checks that speak each server's own protocol.

mod endpoint;
mod http;
mod kafka;
mod nats;
mod redis;
mod zookeeper;

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use self::endpoint::Endpoint;
pub(crate) use self::endpoint::without_password;
use super::Service;
use super::deadline::Deadline;
use super::server::program::Program;

/// Asks a service whether it works. Gives the version it reports, if it reports one.
pub(crate) fn probe(
    service: Service,
    address: &str,
    patience: Duration,
) -> anyhow::Result<Option<String>> {
    if let Some(program) = Program::of(service) {
        return program.version(Path::new(address)).map(Some);
    }
    let deadline = Deadline::after(patience);
    let parts: Vec<&str> = address
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    let mut version = None;
    for part in &parts {
        let ask = || match service {
            Service::Kafka => kafka::probe(part, parts.len(), deadline),
            Service::Nats => nats::probe(part, deadline),
            Service::Redis => redis::probe(part, deadline),
            Service::Zookeeper => zookeeper::probe(part, deadline),
            Service::Nginx | Service::Chromium | Service::Kcat => http::probe(part, deadline),
        };
        version = ask().with_context(|| without_password(part))?;
    }
    if parts.is_empty() {
        bail!("no address");
    }
    Ok(version)
}

/// A connection on which every wait ends at the deadline.
struct Connection {
    stream: BufReader<TcpStream>,
    deadline: Deadline,
}

impl Connection {
    fn open(endpoint: &Endpoint, deadline: Deadline) -> anyhow::Result<Self> {
        let addresses = (endpoint.host.as_str(), endpoint.port).to_socket_addrs()?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, at_least_a_moment(deadline)) {
                Ok(stream) => {
                    return Ok(Self {
                        stream: BufReader::new(stream),
                        deadline,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last).context("cannot connect")
    }

    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let stream = self.stream.get_mut();
        stream.set_write_timeout(Some(at_least_a_moment(self.deadline)))?;
        stream.write_all(bytes).context("cannot send")
    }

    /// One line, without its end.
    fn line(&mut self) -> anyhow::Result<String> {
        const LONGEST: usize = 1 << 20;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let [byte] = self.bytes::<1>()?;
            line.push(byte);
            if line.len() > LONGEST {
                bail!("a line of the answer does not end");
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn bytes<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn exactly(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        const LARGEST: usize = 16 << 20;
        if length > LARGEST {
            bail!("an answer of {length} bytes");
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.limit_reading()?;
        self.stream.read_exact(bytes).context("no answer")
    }

    /// Everything until the server hangs up.
    fn rest(&mut self) -> anyhow::Result<String> {
        const LARGEST: u64 = 1 << 20;
        self.limit_reading()?;
        let mut text = Vec::new();
        (&mut self.stream)
            .take(LARGEST)
            .read_to_end(&mut text)
            .context("no answer")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn limit_reading(&mut self) -> anyhow::Result<()> {
        if self.deadline.passed() {
            bail!("no answer in time");
        }
        Ok(self
            .stream
            .get_ref()
            .set_read_timeout(Some(at_least_a_moment(self.deadline)))?)
    }
}

/// A socket takes no time-out of zero.
fn at_least_a_moment(deadline: Deadline) -> Duration {
    deadline.left().max(Duration::from_millis(1))
}

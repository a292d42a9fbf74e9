use anyhow::{Context, bail};

use super::{Connection, Endpoint};
use crate::services::deadline::Deadline;

/// GET / must be answered, with anything but a failure of the server.
pub(super) fn probe(address: &str, deadline: Deadline) -> anyhow::Result<Option<String>> {
    let endpoint = Endpoint::parse(address, 80)?;
    let mut connection = Connection::open(&endpoint, deadline)?;
    if endpoint.scheme.as_deref() == Some("https") {
        // It listens; the handshake of TLS is left to the tests.
        return Ok(None);
    }
    let request = format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", endpoint.host);
    connection.send(request.as_bytes())?;
    read(&connection.rest()?)
}

fn read(answer: &str) -> anyhow::Result<Option<String>> {
    let mut lines = answer.lines();
    let status = lines.next().unwrap_or_default();
    let code: u16 = status
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("GET / answered {status:?}"))?;
    if code >= 500 {
        bail!("GET / answered {status:?}");
    }
    let server = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("server"))
        .map(|(_, value)| value.trim());
    Ok(server.map(|server| server.strip_prefix("nginx/").unwrap_or(server).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_server_header() {
        let answer = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\n\r\nok";
        assert_eq!(read(answer).unwrap().as_deref(), Some("1.22.1"));
        assert_eq!(
            read("HTTP/1.1 404 Not Found\r\n\r\nServer: no").unwrap(),
            None
        );
    }

    #[test]
    fn failures_and_other_protocols_are_not_healthy() {
        assert!(read("HTTP/1.1 502 Bad Gateway\r\n\r\n").is_err());
        assert!(read("+PONG\r\n").is_err());
        assert!(read("").is_err());
    }
}

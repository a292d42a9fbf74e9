use std::fmt::Write as _;

use anyhow::{Context, bail};

use super::{Connection, Endpoint};
use crate::services::deadline::Deadline;

/// PING must be answered with PONG; the version comes from INFO.
pub(super) fn probe(address: &str, deadline: Deadline) -> anyhow::Result<Option<String>> {
    let endpoint = Endpoint::parse(address, 6379)?;
    let mut connection = Connection::open(&endpoint, deadline)?;
    if endpoint.scheme.as_deref() == Some("rediss") {
        // It listens; the handshake of TLS is left to the tests.
        return Ok(None);
    }
    if let Some(password) = &endpoint.password {
        let user = endpoint.user.as_deref().unwrap_or("default");
        expect(&mut connection, &["AUTH", user, password], "+OK")?;
    }
    expect(&mut connection, &["PING"], "+PONG")?;

    connection.send(command(&["INFO", "server"]).as_bytes())?;
    let length = connection.line()?;
    let length = length
        .strip_prefix('$')
        .with_context(|| format!("INFO answered {length}"))?;
    let info = connection.exactly(length.parse()?)?;
    Ok(version(&String::from_utf8_lossy(&info)))
}

fn expect(connection: &mut Connection, words: &[&str], wanted: &str) -> anyhow::Result<()> {
    connection.send(command(words).as_bytes())?;
    let answer = connection.line()?;
    if answer != wanted {
        bail!("{} answered {answer}", words[0]);
    }
    Ok(())
}

fn command(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(text, "${}\r\n{word}\r\n", word.len());
    }
    text
}

fn version(info: &str) -> Option<String> {
    info.lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .map(|it| it.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(version(info).as_deref(), Some("7.0.15"));
        assert_eq!(version("# Server\r\n"), None);
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        assert_eq!(
            command(&["INFO", "server"]),
            "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n"
        );
    }
}

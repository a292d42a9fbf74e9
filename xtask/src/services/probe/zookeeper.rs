use anyhow::bail;

use super::{Connection, Endpoint};
use crate::services::deadline::Deadline;

/// `srvr` must be answered by a server that serves.
pub(super) fn probe(address: &str, deadline: Deadline) -> anyhow::Result<Option<String>> {
    let endpoint = Endpoint::parse(address, 2181)?;
    let mut connection = Connection::open(&endpoint, deadline)?;
    connection.send(b"srvr")?;
    read(&connection.rest()?)
}

fn read(answer: &str) -> anyhow::Result<Option<String>> {
    if answer.contains("not in the whitelist") {
        // Somebody else's server that keeps its words to itself: it is there.
        return Ok(None);
    }
    let Some(version) = answer
        .lines()
        .find_map(|line| line.strip_prefix("Zookeeper version:"))
    else {
        bail!("srvr answered {:?}", answer.trim());
    };
    // The rest names the commit: "3.8.0-5a02a05, built on …".
    let number = version
        .trim()
        .split(['-', ',', ' '])
        .next()
        .unwrap_or_default();
    Ok(Some(number.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_what_stands_before_the_commit() {
        let answer =
            "Zookeeper version: 3.8.0-5a02a05eddb, built on 2022-02-25\nMode: standalone\n";
        assert_eq!(read(answer).unwrap().as_deref(), Some("3.8.0"));
    }

    #[test]
    fn a_server_that_does_not_serve_is_not_healthy() {
        assert!(read("This ZooKeeper instance is not currently serving requests\n").is_err());
        assert!(read("").is_err());
    }

    #[test]
    fn a_server_that_may_not_say_is_taken_as_it_is() {
        let answer = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(read(answer).unwrap(), None);
    }
}

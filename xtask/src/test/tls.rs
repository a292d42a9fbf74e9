//! TLS and SCRAM on Kafka, which need OpenSSL: `laneway` built once more, with the feature `kafka-tls`.
//!
//! The feature compiles OpenSSL, which takes two cores some minutes. Where the system has its headers (Debian:
//! `libssl-dev`) it is linked instead. Features are chosen for the whole workspace: all other dependencies are then
//! the same as in the run without, and only librdkafka, `laneway` and the test are built a second time.

use std::path::Path;

use super::selection::{BROKERS, Workspace};
use super::suites::{self, Suite};
use super::summary::Row;

/// The arguments of cargo that choose the test.
const CHOSEN: [&str; 4] = [
    "--workspace",
    BROKERS,
    "--features=laneway/kafka-tls",
    "--test=kafka_security",
];

/// Builds the test. Without success there is a row that says so.
pub(super) fn build(workspace: &Workspace) -> Result<Vec<Suite>, Box<Row>> {
    let chosen = CHOSEN.map(str::to_owned);
    let suites = suites::build(workspace, "build with kafka-tls", &chosen, &openssl())?;
    Ok(suites
        .into_iter()
        .map(|suite| suite.labelled("kafka-tls"))
        .collect())
}

/// How the build is told to take the OpenSSL of the system, if that is there.
fn openssl() -> Vec<(&'static str, &'static str)> {
    let installed = Path::new("/usr/include/openssl/ssl.h").exists();
    Vec::from_iter(installed.then_some(("OPENSSL_NO_VENDOR", "1")))
}

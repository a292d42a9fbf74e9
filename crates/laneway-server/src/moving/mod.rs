//! `laneway move`: delayed messages from the directory of one machine to a cluster.
//!
//! The directory is noted as leaving before the first message goes, and the shards of the cluster are fenced off until the
//! last one is there; so a message is never in two places that deliver it. Whether one is there already is asked of the log. It
//! can be killed at any moment and run again. ARCHITECTURE.md has the whole argument.
//!
//! | file | what it is |
//! |---|---|
//! | `options` | what can be typed |
//! | `there` | all of it, from the note to the last release |
//! | `shard` | one shard: its fence, and messages into its log |
//! | `arrival` | a message of the store as a row of the cluster |
//! | `progress` | how far it is, for people |

#[cfg(feature = "cluster")]
mod arrival;
mod options;
#[cfg(feature = "cluster")]
mod progress;
#[cfg(feature = "cluster")]
mod shard;
#[cfg(feature = "cluster")]
mod there;

pub(crate) use options::Move;

use crate::client::Failed;

/// `laneway move …`
pub(crate) fn run(options: &Move) -> anyhow::Result<()> {
    let result = options.check().and_then(|()| go(options));
    result.map_err(|error| Failed::from_any(error, options.json).into())
}

#[cfg(feature = "cluster")]
fn go(options: &Move) -> anyhow::Result<()> {
    use anyhow::Context;

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let report = runtime.block_on(there::run(options));
    // Clients of brokers that are away are not waited for.
    runtime.shutdown_background();
    let report = report?;
    crate::print(&if options.json {
        format!("{}\n", report.json())
    } else {
        report.text()
    })
}

#[cfg(not(feature = "cluster"))]
fn go(options: &Move) -> anyhow::Result<()> {
    let to = crate::config::secret::without_secrets(&options.to);
    anyhow::bail!(
        "moving messages to {to} needs the feature `cluster`, which this program was built without: build it with \
         `--features cluster` and that of the broker (`nats` or `kafka`)"
    )
}

//! `laneway bus`: events that the handlers of a bus could not handle, on any broker.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use laneway::topic::Strategy;
use laneway::{Bus, DeadLetters, Letter, Parked};
use serde_json::json;

/// Closing a bus that nothing reads.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    /// Dead letters: events whose attempts all failed, or that could not be read.
    #[command(subcommand)]
    Dead(DeadLetterCommand),

    /// Parked events: those of keys that wait until they are released.
    #[command(subcommand)]
    Parked(ParkedCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetterCommand {
    /// List them, oldest first.
    List(List),

    /// Publish them to their topic again, for the group that failed.
    Replay {
        #[command(flatten)]
        of: Of,

        /// The numbers of those to replay, as `list` shows them.
        #[arg(required_unless_present = "all")]
        ids: Vec<u64>,

        /// Replay all of them, oldest first.
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },

    /// Drop some for good.
    Discard(Discard),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ParkedCommand {
    /// List them, oldest first.
    List(List),

    /// Let keys go on: their parked events first, then those that came since.
    Release {
        #[command(flatten)]
        of: Of,

        /// The keys to release.
        #[arg(required_unless_present = "all")]
        keys: Vec<String>,

        /// Release all keys of the group.
        #[arg(long, conflicts_with = "keys")]
        all: bool,

        /// The group that the keys are parked for.
        #[arg(long, default_value = "default")]
        group: String,
    },

    /// Drop some for good. A key whose last one is dropped goes on.
    Discard(Discard),
}

/// Which topic, on which bus.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The topic.
    topic: String,

    /// The address of the bus: nats://HOST:PORT, kafka://HOST:PORT, or <file:DIRECTORY> while no process has it.
    #[arg(long, value_name = "URL", env = "LANEWAY_BUS")]
    bus: String,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    of: Of,

    /// The most that are shown.
    #[arg(long, default_value_t = 100)]
    limit: usize,

    /// One line of JSON for each.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    of: Of,

    /// The numbers of those to drop, as `list` shows them.
    #[arg(required = true)]
    ids: Vec<u64>,
}

/// Does what was asked for, and prints what came of it.
pub(crate) fn run(command: &BusCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        let of = command.of();
        ensure!(
            !of.bus.starts_with("memory:"),
            "--bus: memory: is in the memory of another process: ask that process"
        );
        // A mistyped name must not become a topic.
        let bus = Bus::builder().strategy(Strategy::ValidateOnly);
        let bus = bus.open(&of.bus).await?;
        let done = command.done_on(&bus).await;
        let closed = bus.close(CLOSE_WITHIN).await;
        let text = done?;
        closed?;
        crate::print(&text)
    })
}

impl BusCommand {
    fn of(&self) -> &Of {
        match self {
            Self::Dead(DeadLetterCommand::List(list)) | Self::Parked(ParkedCommand::List(list)) => {
                &list.of
            }
            Self::Dead(DeadLetterCommand::Discard(discard))
            | Self::Parked(ParkedCommand::Discard(discard)) => &discard.of,
            Self::Dead(DeadLetterCommand::Replay { of, .. })
            | Self::Parked(ParkedCommand::Release { of, .. }) => of,
        }
    }

    async fn done_on(&self, bus: &Bus) -> anyhow::Result<String> {
        let topic = &self.of().topic;
        match self {
            Self::Dead(command) => on_dead(command, &bus.dead_letters(topic).await?).await,
            Self::Parked(command) => on_parked(command, &bus.parked(topic).await?).await,
        }
    }
}

async fn on_dead(command: &DeadLetterCommand, dead: &DeadLetters) -> anyhow::Result<String> {
    match command {
        DeadLetterCommand::List(list) => Ok(listed(&dead.list(list.limit).await?, list.json)),
        DeadLetterCommand::Replay { ids, all, .. } => {
            let letters = dead.list(usize::MAX).await?;
            let wanted = if *all { letters } else { chosen(letters, ids)? };
            let count = dead.replay(&wanted).await?;
            Ok(format!("replayed {count}\n"))
        }
        DeadLetterCommand::Discard(discard) => {
            chosen(dead.list(usize::MAX).await?, &discard.ids)?;
            dead.discard(&discard.ids).await?;
            Ok(format!("discarded {}\n", discard.ids.len()))
        }
    }
}

async fn on_parked(command: &ParkedCommand, parked: &Parked) -> anyhow::Result<String> {
    match command {
        ParkedCommand::List(list) => Ok(listed(&parked.list(list.limit).await?, list.json)),
        ParkedCommand::Release {
            keys, all, group, ..
        } => {
            let keys = if *all {
                let of_groups = parked.keys().await?;
                let of_group = of_groups.into_iter().filter(|(of, _)| of == group);
                of_group.map(|(_, key)| key.to_string()).collect()
            } else {
                keys.clone()
            };
            for key in &keys {
                parked.release(group, key).await?;
            }
            Ok(format!("asked to release {}\n", keys.len()))
        }
        ParkedCommand::Discard(discard) => {
            chosen(parked.list(usize::MAX).await?, &discard.ids)?;
            parked.discard(&discard.ids).await?;
            Ok(format!("discarded {}\n", discard.ids.len()))
        }
    }
}

/// Those with these numbers; all of them have to be there.
fn chosen(letters: Vec<Letter>, ids: &[u64]) -> anyhow::Result<Vec<Letter>> {
    let wanted: BTreeSet<_> = ids.iter().copied().collect();
    let there: BTreeSet<_> = letters.iter().map(|letter| letter.id).collect();
    if let Some(unknown) = wanted.difference(&there).next() {
        bail!("there is no letter {unknown}: `list` shows those that are there");
    }
    let chosen = letters.into_iter().filter(|l| wanted.contains(&l.id));
    Ok(chosen.collect())
}

fn listed(letters: &[Letter], as_json: bool) -> String {
    let mut text = String::new();
    for letter in letters {
        let (partition, offset) = letter.origin;
        let key = letter.key.as_deref().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = if as_json {
            let line = json!({
                "id": letter.id, "key": letter.key.as_deref(), "group": letter.group,
                "reason": letter.reason, "attempts": letter.attempts, "partition": partition,
                "offset": offset, "at_ms": letter.at_ms, "bytes": letter.record.payload.len(),
                "missing": letter.missing,
            });
            writeln!(text, "{line}")
        } else {
            let reason = letter.missing.as_deref().unwrap_or(&letter.reason);
            let reason = reason.lines().next().unwrap_or_default();
            writeln!(
                text,
                "{}  key {key}  group {}  attempts {}  at {partition}/{offset}  {reason}",
                letter.id, letter.group, letter.attempts
            )
        };
    }
    if letters.is_empty() && !as_json {
        text.push_str("none\n");
    }
    text
}

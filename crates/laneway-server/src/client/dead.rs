//! `laneway dead`: list, replay, purge.

use std::path::Path;

use anyhow::bail;
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::delay::PageArgs;
use super::failed::Failed;
use super::server::{Answer, Connection, Server};
use super::{show, table};

/// What can be done with messages that were given up.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List messages that were given up. `laneway delay get ID` says why.
    #[command(after_help = "Example: laneway dead list --topic reminders")]
    List {
        #[command(flatten)]
        page: PageArgs,

        #[command(flatten)]
        connection: Connection,
    },

    /// Make new messages of dead ones, due now. The dead ones are gone then.
    #[command(
        group = clap::ArgGroup::new("which").required(true),
        after_help = "Examples:\n  laneway dead replay order-4711\n  laneway dead replay --all --topic reminders"
    )]
    Replay {
        /// The id of one.
        #[arg(group = "which")]
        id: Option<String>,

        /// All of them, or all of one topic.
        #[arg(long, group = "which")]
        all: bool,

        /// Only those of this topic.
        #[arg(long, requires = "all")]
        topic: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },

    /// Forget dead messages for good.
    #[command(
        group = clap::ArgGroup::new("which").required(true),
        after_help = "Examples:\n  laneway dead purge order-4711\n  laneway dead purge --topic reminders\n  laneway dead purge --all"
    )]
    Purge {
        /// The id of one.
        #[arg(group = "which")]
        id: Option<String>,

        /// All of them.
        #[arg(long, group = "which")]
        all: bool,

        /// All of this topic.
        #[arg(long, group = "which")]
        topic: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },
}

impl DeadCommand {
    pub(super) fn connection(&self) -> &Connection {
        match self {
            Self::List { connection, .. }
            | Self::Replay { connection, .. }
            | Self::Purge { connection, .. } => connection,
        }
    }
}

pub(super) async fn run(command: DeadCommand, config: Option<&Path>) -> anyhow::Result<()> {
    match command {
        DeadCommand::List { page, connection } => {
            let server = connection.open(config)?;
            let mut url = server.url(&["v1", "dead"])?;
            page.add_to(&mut url);
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, table::messages)
        }
        DeadCommand::Replay {
            id: Some(id),
            connection,
            ..
        } => {
            let answer = replay(&connection.open(config)?, &id).await?;
            show(&connection, &answer, table::accepted)
        }
        DeadCommand::Replay {
            topic, connection, ..
        } => {
            let all = replay_all(&connection.open(config)?, topic.as_deref()).await?;
            let Replayed { replayed, skipped } = all;
            let value = json!({ "replayed": replayed, "skipped": skipped });
            let text = value.to_string();
            let answer = Answer { text, value };
            show(&connection, &answer, |_| match skipped {
                0 => format!("replayed: {replayed}\n"),
                _ => format!("replayed: {replayed}\nskipped: {skipped}, which are dead no more\n"),
            })
        }
        DeadCommand::Purge {
            id,
            topic,
            connection,
            ..
        } => {
            let server = connection.open(config)?;
            let url = match (&id, &topic) {
                (Some(id), _) => server.url(&["v1", "dead", id])?,
                (None, topic) => {
                    let mut url = server.url(&["v1", "dead"])?;
                    let (name, value) = match topic {
                        Some(topic) => ("topic", topic.as_str()),
                        None => ("all", "true"),
                    };
                    url.query_pairs_mut().append_pair(name, value);
                    url
                }
            };
            let answer = server.send(Method::DELETE, url, &[], None).await?;
            show(&connection, &answer, |answer| {
                let purged = answer.value.get("purged").map(Value::to_string);
                format!("purged: {}\n", purged.unwrap_or_default())
            })
        }
    }
}

async fn replay(server: &Server, id: &str) -> anyhow::Result<Answer> {
    let url = server.url(&["v1", "dead", id, "replay"])?;
    server.send(Method::POST, url, &[], None).await
}

/// What became of many.
struct Replayed {
    replayed: usize,
    /// How many were replayed or purged by others meanwhile.
    skipped: usize,
}

/// All that are dead when it starts. Some may die again meanwhile; they are not replayed again.
async fn replay_all(server: &Server, topic: Option<&str>) -> anyhow::Result<Replayed> {
    let mut ids = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut url = server.url(&["v1", "dead"])?;
        {
            let mut pairs = url.query_pairs_mut();
            pairs.append_pair("limit", "1000");
            if let Some(topic) = topic {
                pairs.append_pair("topic", topic);
            }
            if let Some(after) = &after {
                pairs.append_pair("after", after);
            }
        }
        let page = server.send(Method::GET, url, &[], None).await?.value;
        let Some(messages) = page.get("messages").and_then(Value::as_array) else {
            bail!("the server answered without messages: is it a laneway?");
        };
        ids.extend(
            messages
                .iter()
                .map(|message| table::text(message, "id").to_owned()),
        );
        match page.get("next").and_then(Value::as_str) {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    let mut all = Replayed {
        replayed: 0,
        skipped: 0,
    };
    for id in &ids {
        match replay(server, id).await {
            Ok(_) => all.replayed += 1,
            Err(error) => match error.downcast::<Failed>() {
                Ok(failed) if failed.is_about_state() => all.skipped += 1,
                Ok(failed) => return Err(failed.after("replayed", all.replayed).into()),
                Err(error) => {
                    let before = format!("replayed before that: {}", all.replayed);
                    return Err(error.context(before));
                }
            },
        }
    }
    Ok(all)
}

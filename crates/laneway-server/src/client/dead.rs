//! `laneway dead`: list, replay, purge.

use anyhow::bail;
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::delay::PageArgs;
use super::server::{Connection, Server};
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
        after_help = "Examples:\n  laneway dead replay order-4711\n  laneway dead replay --all --topic reminders"
    )]
    Replay {
        /// The id of one.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        id: Option<String>,

        /// All of them, or all of one topic.
        #[arg(long)]
        all: bool,

        /// Only those of this topic.
        #[arg(long, requires = "all")]
        topic: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },

    /// Forget dead messages for good.
    #[command(
        after_help = "Examples:\n  laneway dead purge order-4711\n  laneway dead purge --topic reminders\n  laneway dead purge --all"
    )]
    Purge {
        /// The id of one.
        #[arg(required_unless_present_any = ["all", "topic"], conflicts_with_all = ["all", "topic"])]
        id: Option<String>,

        /// All of them.
        #[arg(long, conflicts_with = "topic")]
        all: bool,

        /// All of this topic.
        #[arg(long)]
        topic: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },
}

pub(super) async fn run(command: DeadCommand) -> anyhow::Result<()> {
    match command {
        DeadCommand::List { page, connection } => {
            let server = connection.open()?;
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
            let answer = replay(&connection.open()?, &id).await?;
            show(&connection, &answer, table::accepted)
        }
        DeadCommand::Replay {
            topic, connection, ..
        } => {
            let replayed = replay_all(&connection.open()?, topic.as_deref()).await?;
            let answer = json!({ "replayed": replayed });
            show(&connection, &answer, |_| format!("replayed: {replayed}\n"))
        }
        DeadCommand::Purge {
            id,
            topic,
            connection,
            ..
        } => {
            let server = connection.open()?;
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
                let purged = answer.get("purged").map(Value::to_string);
                format!("purged: {}\n", purged.unwrap_or_default())
            })
        }
    }
}

async fn replay(server: &Server, id: &str) -> anyhow::Result<Value> {
    let url = server.url(&["v1", "dead", id, "replay"])?;
    server.send(Method::POST, url, &[], None).await
}

/// All that are dead when it starts. Some may die again meanwhile; they are not replayed again.
async fn replay_all(server: &Server, topic: Option<&str>) -> anyhow::Result<usize> {
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
        let page = server.send(Method::GET, url, &[], None).await?;
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
    for id in &ids {
        replay(server, id).await?;
    }
    Ok(ids.len())
}

//! `laneway topic`: which workers the messages of a topic go to, and how these share them.

use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::server::{Answer, Connection, Server};
use super::show;
use super::table::{rows, text};

/// How the workers of a topic can share its messages.
const STRATEGIES: [&str; 5] = [
    "random",
    "round-robin",
    "weighted-random",
    "smooth-weighted-round-robin",
    "least-loaded",
];

/// What can be set for topics of a cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// List the topics for which something is set. All others have all workers.
    #[command(after_help = "Example: laneway topic list --server http://10.0.0.5:7070")]
    List {
        #[command(flatten)]
        connection: Connection,
    },

    /// Show which workers a topic has, and how they share its messages.
    #[command(after_help = "Example: laneway topic show reminders")]
    Show {
        /// The topic.
        name: String,

        #[command(flatten)]
        connection: Connection,
    },

    /// Say which workers deliver the messages of a topic, from the next attempt on.
    ///
    /// Workers go by their names (`laneway serve --name`), so that they keep their topics when they are restarted. One that is
    /// not there yet can be named, too. While none of them lives, any worker delivers.
    #[command(
        group = ArgGroup::new("which").required(true),
        after_help = "Examples:\n  laneway topic map reminders --workers worker-1,worker-2\n  laneway topic map reminders --random 2\n  laneway topic map reminders --all"
    )]
    Map {
        /// The topic.
        name: String,

        /// These, by name.
        #[arg(long, group = "which", value_name = "NAME,…", value_delimiter = ',')]
        workers: Vec<String>,

        /// So many of those that are there, drawn now, once.
        #[arg(long, group = "which", value_name = "N")]
        random: Option<u32>,

        /// All of them, also those to come.
        #[arg(long, group = "which")]
        all: bool,

        #[command(flatten)]
        connection: Connection,
    },

    /// Say how the workers of a topic share its messages, from the next attempt on.
    #[command(after_help = "Example: laneway topic balance reminders least-loaded")]
    Balance {
        /// The topic.
        name: String,

        /// How they share. Weights are made of what workers hold, and of how busy their processors and memory are.
        #[arg(value_parser = PossibleValuesParser::new(STRATEGIES))]
        strategy: String,

        #[command(flatten)]
        connection: Connection,
    },

    /// Take back what was set for a topic: all workers, by weight.
    #[command(after_help = "Example: laneway topic reset reminders")]
    Reset {
        /// The topic.
        name: String,

        #[command(flatten)]
        connection: Connection,
    },
}

impl TopicCommand {
    pub(super) fn connection(&self) -> &Connection {
        match self {
            Self::List { connection }
            | Self::Show { connection, .. }
            | Self::Map { connection, .. }
            | Self::Balance { connection, .. }
            | Self::Reset { connection, .. } => connection,
        }
    }
}

pub(super) async fn run(command: TopicCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let connection = command.connection().clone();
    let server = connection.open(config)?;
    let answer = match command {
        TopicCommand::List { .. } => {
            let url = server.url(&["v1", "topics"])?;
            let answer = server.send(Method::GET, url, &[], None).await?;
            return show(&connection, &answer, list);
        }
        TopicCommand::Show { name, .. } => send(&server, Method::GET, &name, None).await?,
        TopicCommand::Map {
            name,
            workers,
            random,
            all,
            ..
        } => {
            let body = match random {
                _ if all => json!({ "all": true }),
                Some(count) => json!({ "random": count }),
                None => json!({ "workers": workers }),
            };
            send(&server, Method::PUT, &name, Some(body)).await?
        }
        TopicCommand::Balance { name, strategy, .. } => {
            let body = json!({ "balance": strategy });
            send(&server, Method::PUT, &name, Some(body)).await?
        }
        TopicCommand::Reset { name, .. } => send(&server, Method::DELETE, &name, None).await?,
    };
    show(&connection, &answer, one)
}

async fn send(
    server: &Server,
    method: Method,
    topic: &str,
    body: Option<Value>,
) -> anyhow::Result<Answer> {
    let url = server.url(&["v1", "topics", topic, "placement"])?;
    let body = body.map(|body| body.to_string());
    server.send(method, url, &[], body).await
}

fn list(answer: &Answer) -> String {
    let topics = answer.value.get("topics").and_then(Value::as_array);
    let of = |it: &Value| {
        vec![
            text(it, "topic").to_owned(),
            workers(it),
            text(it, "balance").to_owned(),
            names(it, "missing"),
        ]
    };
    let columns = ["TOPIC", "WORKERS", "BALANCE", "NOT THERE"];
    let shown = rows(&columns, topics.into_iter().flatten().map(of));
    format!("{shown}all other topics: all workers, smooth-weighted-round-robin\n")
}

fn one(answer: &Answer) -> String {
    let it = &answer.value;
    let (topic, balance) = (text(it, "topic"), text(it, "balance"));
    let mut shown = format!(
        "topic:    {topic}\nworkers:  {}\nbalance:  {balance}\n",
        workers(it)
    );
    let missing = names(it, "missing");
    if !missing.is_empty() {
        shown.push_str("warning:  not there now: ");
        shown.push_str(&missing);
        shown.push_str("; while none of the topic's workers is there, any worker delivers\n");
    }
    shown
}

fn workers(it: &Value) -> String {
    if it.get("all").and_then(Value::as_bool) == Some(true) {
        return "all".to_owned();
    }
    let names = names(it, "workers");
    match it.get("random").and_then(Value::as_u64) {
        Some(count) => format!("{names} (drawn: {count})"),
        None => names,
    }
}

fn names(it: &Value, field: &str) -> String {
    let names = it.get(field).and_then(Value::as_array);
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    names.collect::<Vec<_>>().join(", ")
}

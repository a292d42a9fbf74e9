//! `laneway delay`: submit, extend, withdraw, get, list.

use std::io::{self, Read};

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::server::Connection;
use super::{show, table};

/// What can be done with delayed messages.
#[derive(Debug, Subcommand)]
pub(crate) enum DelayCommand {
    /// Submit a message that is due later. It is on disk when this returns.
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(Box<Submit>),

    /// Make a message due later. The answer is final.
    #[command(
        after_help = "Examples:\n  laneway delay extend order-4711 --by 10m\n  laneway delay extend order-4711 --to 2030-01-31T12:00:00Z"
    )]
    Extend {
        /// The id of the message.
        id: String,

        /// How much later than it is due now, such as 10m.
        #[arg(
            long,
            value_name = "TIME",
            required_unless_present = "to",
            conflicts_with = "to"
        )]
        by: Option<String>,

        /// The new due time, which has to be later.
        #[arg(long, value_name = "DATE")]
        to: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },

    /// Take a message back. After a yes it is not delivered.
    #[command(after_help = "Example: laneway delay withdraw order-4711")]
    Withdraw {
        /// The id of the message.
        id: String,

        #[command(flatten)]
        connection: Connection,
    },

    /// Show a message and what happened to it.
    #[command(after_help = "Example: laneway delay get order-4711")]
    Get {
        /// The id of the message.
        id: String,

        #[command(flatten)]
        connection: Connection,
    },

    /// List messages: those that wait, unless another state is asked for.
    #[command(
        after_help = "Examples:\n  laneway delay list --topic reminders\n  laneway delay list --state delivered --limit 10 --json"
    )]
    List {
        /// Only those that are scheduled, firing, delivered, dead or withdrawn.
        #[arg(long)]
        state: Option<String>,

        #[command(flatten)]
        page: PageArgs,

        #[command(flatten)]
        connection: Connection,
    },
}

const SUBMIT_EXAMPLES: &str = "\
Examples:
  laneway delay submit --topic reminders --in 15m --callback http://127.0.0.1:8000/hook \\
      --payload '{\"cart\":17}'
  laneway delay submit --topic orders --at 2030-01-31T12:00:00Z --id order-4711 \\
      --bus orders --aggregate-id order-4711 --event-type OrderExpired
  echo '{\"cart\":17}' | laneway delay submit --topic t --in 5s --callback https://example.com/ --payload -";

/// Which page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,

    /// How many at most.
    #[arg(long, default_value_t = 50)]
    limit: u32,

    /// Where the page before this one ended: what it said under `next`.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

/// A message to submit.
#[derive(Debug, Args)]
pub(crate) struct Submit {
    /// What the message belongs to.
    #[arg(long)]
    topic: String,

    /// How long from now it is due: 1500ms, 30s, 15m, 2h, 7d.
    #[arg(
        long = "in",
        value_name = "TIME",
        required_unless_present = "at",
        conflicts_with = "at"
    )]
    delay: Option<String>,

    /// When it is due, by RFC 3339: 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "DATE")]
    at: Option<String>,

    /// Call this URL when it is due.
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "bus",
        conflicts_with = "bus"
    )]
    callback: Option<String>,

    /// The method of the callback.
    #[arg(long, requires = "callback")]
    method: Option<String>,

    /// A header of the callback. Can be given several times.
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "callback")]
    headers: Vec<String>,

    /// How long the receiver may take to answer.
    #[arg(long, value_name = "TIME", requires = "callback")]
    timeout: Option<String>,

    /// Publish it to this topic of the bus when it is due.
    #[arg(long, value_name = "TOPIC", requires_all = ["aggregate_id", "event_type"])]
    bus: Option<String>,

    /// The aggregate of the event.
    #[arg(long, requires = "bus")]
    aggregate_id: Option<String>,

    /// The type of the event.
    #[arg(long, requires = "bus")]
    event_type: Option<String>,

    /// What is delivered: JSON, or any text with --content-type. `-` reads standard input.
    #[arg(long)]
    payload: Option<String>,

    /// What the payload is, if it is not JSON.
    #[arg(long, value_name = "TYPE", requires = "payload")]
    content_type: Option<String>,

    /// An id of your own.
    #[arg(long)]
    id: Option<String>,

    /// A second submission with the same key is the same message.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// The waits between attempts, such as 1s,10s,1m.
    #[arg(long, value_name = "TIMES")]
    retry: Option<String>,

    /// Something to find again with the message. Can be given several times.
    #[arg(long = "metadata", value_name = "NAME=VALUE")]
    metadata: Vec<String>,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: DelayCommand) -> anyhow::Result<()> {
    match command {
        DelayCommand::Submit(submit) => {
            let server = submit.connection.open()?;
            let body = submit.body()?;
            let url = server.url(&["v1", "messages"])?;
            let key = submit.idempotency_key.as_deref();
            let headers: Vec<_> = key
                .map(|key| ("idempotency-key", key))
                .into_iter()
                .collect();
            let answer = server
                .send(Method::POST, url, &headers, Some(&body))
                .await?;
            show(&submit.connection, &answer, table::accepted)
        }
        DelayCommand::Extend {
            id,
            by,
            to,
            connection,
        } => {
            let server = connection.open()?;
            let url = server.url(&["v1", "messages", &id, "extend"])?;
            let body = match (by, to) {
                (Some(by), _) => json!({ "by": by }),
                (None, to) => json!({ "to": to }),
            };
            let answer = server.send(Method::POST, url, &[], Some(&body)).await?;
            show(&connection, &answer, |answer| {
                table::changed("extended", answer)
            })
        }
        DelayCommand::Withdraw { id, connection } => {
            let server = connection.open()?;
            let url = server.url(&["v1", "messages", &id])?;
            let answer = server.send(Method::DELETE, url, &[], None).await?;
            show(&connection, &answer, |answer| {
                table::changed("withdrawn", answer)
            })
        }
        DelayCommand::Get { id, connection } => {
            let server = connection.open()?;
            let url = server.url(&["v1", "messages", &id])?;
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, table::message)
        }
        DelayCommand::List {
            state,
            page,
            connection,
        } => {
            let server = connection.open()?;
            let mut url = server.url(&["v1", "messages"])?;
            page.add_to(&mut url);
            if let Some(state) = state {
                url.query_pairs_mut().append_pair("state", &state);
            }
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, table::messages)
        }
    }
}

impl PageArgs {
    pub(super) fn add_to(&self, url: &mut url::Url) {
        let mut pairs = url.query_pairs_mut();
        pairs.append_pair("limit", &self.limit.to_string());
        let optional = [("topic", &self.topic), ("after", &self.after)];
        for (name, value) in optional {
            if let Some(value) = value {
                pairs.append_pair(name, value);
            }
        }
    }
}

impl Submit {
    fn body(&self) -> anyhow::Result<Value> {
        let mut body = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        let text = |value: &Option<String>| value.clone().map(Value::String);
        set("topic", Some(json!(self.topic)));
        set("delay", text(&self.delay));
        set("deliver_at", text(&self.at));
        set("id", text(&self.id));
        set("content_type", text(&self.content_type));
        set("target", Some(self.target()?));
        let retry = self
            .retry
            .as_deref()
            .map(|waits| waits.split(',').map(str::trim).collect());
        set("retry", retry.map(|waits: Vec<&str>| json!(waits)));
        if !self.metadata.is_empty() {
            let entries = self
                .metadata
                .iter()
                .map(|entry| split("--metadata", entry, '='));
            let entries: Map<String, Value> = entries.collect::<anyhow::Result<_>>()?;
            set("metadata", Some(Value::Object(entries)));
        }
        if let Some(payload) = self.payload()? {
            let (name, value) = self.content(payload)?;
            set(name, Some(value));
        }
        Ok(Value::Object(body))
    }

    fn target(&self) -> anyhow::Result<Value> {
        let Some(url) = &self.callback else {
            return Ok(json!({ "bus": {
                "topic": self.bus,
                "aggregate_id": self.aggregate_id,
                "event_type": self.event_type,
            }}));
        };
        let headers = self
            .headers
            .iter()
            .map(|header| split("--header", header, ':'));
        let headers: Map<String, Value> = headers.collect::<anyhow::Result<_>>()?;
        let mut callback = json!({ "url": url, "headers": headers });
        for (name, value) in [("method", &self.method), ("timeout", &self.timeout)] {
            if let Some(value) = value {
                callback[name] = json!(value);
            }
        }
        Ok(json!({ "callback": callback }))
    }

    fn payload(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match self.payload.as_deref() {
            Some("-") => {
                let mut bytes = Vec::new();
                let read = io::stdin().read_to_end(&mut bytes);
                read.context("cannot read the payload from standard input")?;
                Ok(Some(bytes))
            }
            other => Ok(other.map(|text| text.as_bytes().to_vec())),
        }
    }

    /// JSON goes as it is, anything else in base64.
    fn content(&self, payload: Vec<u8>) -> anyhow::Result<(&'static str, Value)> {
        if self.content_type.is_some() {
            return Ok(("payload_base64", json!(STANDARD.encode(payload))));
        }
        match serde_json::from_slice(&payload) {
            Ok(json) => Ok(("payload", json)),
            Err(error) => bail!(
                "--payload is not JSON ({error}): quote it for the shell, or say what it is with --content-type"
            ),
        }
    }
}

/// `NAME=VALUE`, or `NAME: VALUE`.
fn split(flag: &str, entry: &str, at: char) -> anyhow::Result<(String, Value)> {
    let parts = entry.split_once(at);
    let (name, value) =
        parts.with_context(|| format!("{flag} is `{entry}`: write NAME{at}VALUE"))?;
    ensure!(
        !name.trim().is_empty(),
        "{flag} is `{entry}`: the name is missing"
    );
    Ok((name.trim().to_owned(), json!(value.trim())))
}

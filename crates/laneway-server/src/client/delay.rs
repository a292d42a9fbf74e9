//! `laneway delay`: submit, extend, withdraw, get, list.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde::Serialize;
use serde_json::value::RawValue;
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
        group = clap::ArgGroup::new("how").required(true),
        after_help = "Examples:\n  laneway delay extend order-4711 --by 10m\n  laneway delay extend order-4711 --to 2030-01-31T12:00:00Z"
    )]
    Extend {
        /// The id of the message.
        id: String,

        /// How much later than it is due now, such as 10m.
        #[arg(long, value_name = "TIME", group = "how")]
        by: Option<String>,

        /// The new due time, which has to be later.
        #[arg(long, value_name = "DATE", group = "how")]
        to: Option<String>,

        #[command(flatten)]
        connection: Connection,
    },

    /// Take a message back. After a yes it was not delivered, and will not be.
    #[command(
        after_help = "Examples:\n  laneway delay withdraw order-4711\n  laneway delay withdraw order-4711 --stop"
    )]
    Withdraw {
        /// The id of the message.
        id: String,

        /// Also if an attempt runs or gave no answer: no further attempts, but it may have been delivered.
        #[arg(long)]
        stop: bool,

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

    /// List messages: those that wait or are being delivered, unless a state is asked for.
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
#[command(
    group = clap::ArgGroup::new("when").required(true),
    group = clap::ArgGroup::new("where").required(true)
)]
pub(crate) struct Submit {
    /// What the message belongs to.
    #[arg(long)]
    topic: String,

    /// How long from now it is due: 1500ms, 30s, 15m, 1h30m, 7d; a number alone is milliseconds.
    #[arg(long = "in", value_name = "TIME", group = "when")]
    delay: Option<String>,

    /// When it is due, by RFC 3339: 2030-01-31T12:00:00Z; a number is milliseconds since 1970.
    #[arg(long, value_name = "DATE", group = "when")]
    at: Option<String>,

    /// Call this URL when it is due.
    #[arg(long, value_name = "URL", group = "where")]
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

    /// Publish it to this topic of the server's bus (`serve --bus`) when it is due.
    #[arg(long, value_name = "TOPIC", group = "where", requires_all = ["aggregate_id", "event_type"])]
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

    /// Take the place of the message that has this id, if there is one that waits or has ended.
    #[arg(long, requires = "id")]
    replace: bool,

    /// A second submission with the same key is the same message.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// The waits between attempts, such as 1s,10s,1m; `none` is one attempt.
    #[arg(long, value_name = "TIMES")]
    retry: Option<String>,

    /// Something to find again with the message. Can be given several times.
    #[arg(long = "metadata", value_name = "NAME=VALUE")]
    metadata: Vec<String>,

    #[command(flatten)]
    connection: Connection,
}

impl DelayCommand {
    pub(super) fn connection(&self) -> &Connection {
        match self {
            Self::Submit(submit) => &submit.connection,
            Self::Extend { connection, .. }
            | Self::Withdraw { connection, .. }
            | Self::Get { connection, .. }
            | Self::List { connection, .. } => connection,
        }
    }
}

pub(super) async fn run(command: DelayCommand, config: Option<&Path>) -> anyhow::Result<()> {
    match command {
        DelayCommand::Submit(submit) => {
            let server = submit.connection.open(config)?;
            let body = submit.body()?;
            let url = server.url(&["v1", "messages"])?;
            let key = submit.idempotency_key.as_deref();
            let headers: Vec<_> = key
                .map(|key| ("idempotency-key", key))
                .into_iter()
                .collect();
            let answer = server.send(Method::POST, url, &headers, Some(body)).await?;
            show(&submit.connection, &answer, table::accepted)
        }
        DelayCommand::Extend {
            id,
            by,
            to,
            connection,
        } => {
            let server = connection.open(config)?;
            let url = server.url(&["v1", "messages", &id, "extend"])?;
            let body = match (by, to) {
                (Some(by), _) => json!({ "by": time(&by) }),
                (None, to) => json!({ "to": to.as_deref().map(time) }),
            };
            let body = Some(body.to_string());
            let answer = server.send(Method::POST, url, &[], body).await?;
            show(&connection, &answer, |answer| {
                table::changed("extended", answer)
            })
        }
        DelayCommand::Withdraw {
            id,
            stop,
            connection,
        } => {
            let server = connection.open(config)?;
            let mut url = server.url(&["v1", "messages", &id])?;
            if stop {
                url.query_pairs_mut().append_pair("stop", "true");
            }
            let answer = server.send(Method::DELETE, url, &[], None).await?;
            show(&connection, &answer, table::withdrawn)
        }
        DelayCommand::Get { id, connection } => {
            let server = connection.open(config)?;
            let url = server.url(&["v1", "messages", &id])?;
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, table::message)
        }
        DelayCommand::List {
            state,
            page,
            connection,
        } => {
            let server = connection.open(config)?;
            let mut url = server.url(&["v1", "messages"])?;
            page.add_to(&mut url);
            let mut firing = url.clone();
            firing.query_pairs_mut().append_pair("state", "firing");
            // What is being delivered waits too, for people; a program gets the one list that it asked for.
            let also_firing = state.is_none() && page.after.is_none() && !connection.json;
            if let Some(state) = state {
                url.query_pairs_mut().append_pair("state", &state);
            }
            let mut answer = server.send(Method::GET, url, &[], None).await?;
            if also_firing {
                let firing = server.send(Method::GET, firing, &[], None).await?;
                table::put_first(&mut answer, firing);
            }
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

/// What is sent. The payload goes as it was written.
#[derive(Serialize)]
struct Body {
    #[serde(flatten)]
    parts: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
}

/// A time or a date; digits alone are a number of milliseconds.
fn time(text: &str) -> Value {
    text.parse::<u64>()
        .map_or_else(|_| json!(text), |millis| json!(millis))
}

impl Submit {
    fn body(&self) -> anyhow::Result<String> {
        let mut parts = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                parts.insert(name.to_owned(), value);
            }
        };
        let text = |value: &Option<String>| value.clone().map(Value::String);
        set("topic", Some(json!(self.topic)));
        set("delay", self.delay.as_deref().map(time));
        set("deliver_at", self.at.as_deref().map(time));
        set("id", text(&self.id));
        set("replace", self.replace.then_some(Value::Bool(true)));
        set("content_type", text(&self.content_type));
        set("target", Some(self.target()?));
        let retry = self.retry.as_deref().map(|waits| match waits {
            "none" => Vec::new(),
            waits => waits.split(',').map(str::trim).collect(),
        });
        set("retry", retry.map(|waits: Vec<&str>| json!(waits)));
        if !self.metadata.is_empty() {
            let entries = self
                .metadata
                .iter()
                .map(|entry| split("--metadata", entry, '='));
            let entries: Map<String, Value> = entries.collect::<anyhow::Result<_>>()?;
            set("metadata", Some(Value::Object(entries)));
        }
        let mut payload = None;
        if let Some(bytes) = self.payload()? {
            if self.content_type.is_some() {
                set("payload_base64", Some(json!(STANDARD.encode(bytes))));
            } else {
                payload = Some(raw(bytes)?);
            }
        }
        serde_json::to_string(&Body { parts, payload }).context("cannot write the request")
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
        if let Some(method) = &self.method {
            callback["method"] = json!(method);
        }
        if let Some(timeout) = &self.timeout {
            callback["timeout"] = time(timeout);
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
}

/// JSON, byte for byte.
fn raw(payload: Vec<u8>) -> anyhow::Result<Box<RawValue>> {
    let text = String::from_utf8(payload).context("--payload is not JSON, nor text")?;
    serde_json::from_str(&text).map_err(|error| {
        anyhow!(
            "--payload is not JSON ({error}): quote it for the shell, or say what it is with --content-type"
        )
    })
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

//! `laneway cluster`: instances and shards of a cluster, and what operators do with them.

use std::path::Path;

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::server::{Answer, Connection};
use super::show;
use super::table::{number, rows, text};

/// What can be asked about a cluster, and done with it.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// List the processes of the cluster and their roles, and how far the clocks of workers are off.
    #[command(after_help = "Example: laneway cluster status --server http://10.0.0.5:7070")]
    Status {
        #[command(flatten)]
        connection: Connection,
    },

    /// List the shards: which center owns them, since which epoch, how far it is, and how far the other centers are behind.
    #[command(after_help = "Example: laneway cluster shards --json")]
    Shards {
        #[command(flatten)]
        connection: Connection,
    },

    /// Let a process finish what it has, and take nothing new, before it is stopped.
    ///
    /// A worker gets no more attempts and finishes those that run; a center gives up its shards; `/readyz` of a receive or an
    /// admin answers 503, so that proxies leave it out. It lasts until the process ends: started again, it is another instance.
    /// `laneway cluster status` shows what is left of it.
    #[command(after_help = "Example: laneway cluster drain worker-1")]
    Drain {
        /// The name of the process, or its id if others have the same name.
        #[arg(value_name = "NAME|ID")]
        which: String,

        #[command(flatten)]
        connection: Connection,
    },

    /// End the membership of a process that is gone or stuck.
    ///
    /// Its work goes to others at once. If it still lives, it stops when it hears of that. What it had begun and not settled may be
    /// delivered twice: drain it first if it answers.
    #[command(after_help = "Example: laneway cluster remove 019a9604-5c49-7d03-b4b7-7b0a4b8f0c11")]
    Remove {
        /// The name of the process, or its id if others have the same name or it is not listed any more.
        #[arg(value_name = "NAME|ID")]
        which: String,

        #[command(flatten)]
        connection: Connection,
    },
}

impl ClusterCommand {
    pub(super) fn connection(&self) -> &Connection {
        match self {
            Self::Status { connection }
            | Self::Shards { connection }
            | Self::Drain { connection, .. }
            | Self::Remove { connection, .. } => connection,
        }
    }
}

pub(super) async fn run(command: ClusterCommand, config: Option<&Path>) -> anyhow::Result<()> {
    let server = command.connection().open(config)?;
    match command {
        ClusterCommand::Status { connection } => {
            let url = server.url(&["v1", "cluster"])?;
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, status)
        }
        ClusterCommand::Shards { connection } => {
            let url = server.url(&["v1", "cluster"])?;
            let answer = server.send(Method::GET, url, &[], None).await?;
            show(&connection, &answer, shards)
        }
        ClusterCommand::Drain { which, connection } => {
            let url = server.url(&["v1", "cluster", "instances", &which, "drain"])?;
            let answer = server.send(Method::POST, url, &[], None).await?;
            show(&connection, &answer, |answer| told("drained", answer))
        }
        ClusterCommand::Remove { which, connection } => {
            let url = server.url(&["v1", "cluster", "instances", &which])?;
            let answer = server.send(Method::DELETE, url, &[], None).await?;
            show(&connection, &answer, |answer| told("removed", answer))
        }
    }
}

fn told(verb: &str, answer: &Answer) -> String {
    let it = answer.value.get(verb).unwrap_or(&Value::Null);
    let roles = it.get("roles").and_then(Value::as_array);
    let roles: Vec<&str> = roles
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let id = text(it, "id");
    match text(it, "name") {
        "" => format!("{verb}: {id}, which is not listed\n"),
        name => format!("{verb}: {name} ({}) {id}\n", roles.join(", ")),
    }
}

fn status(answer: &Answer) -> String {
    let cluster = &answer.value;
    let of = |it: &Value| {
        let id = text(it, "id");
        let shards = match text(it, "role") {
            "center" => {
                let owned = all(cluster, "shards").filter(|shard| text(shard, "owner_id") == id);
                owned.count().to_string()
            }
            _ => String::new(),
        };
        let state = if is(it, "is_drained") { "drained" } else { "" };
        let mut row = ["role", "name", "address", "version"]
            .map(|column| text(it, column).to_owned())
            .to_vec();
        row.extend([shards, state.to_owned(), id.to_owned()]);
        row
    };
    let mut shown = rows(
        &[
            "ROLE", "NAME", "ADDRESS", "VERSION", "SHARDS", "STATE", "ID",
        ],
        all(cluster, "instances").map(of),
    );
    if cluster.get("is_current").and_then(Value::as_bool) == Some(false) {
        shown.push_str("the registry does not answer: these were there when it last did\n");
    }
    let of = |it: &Value| {
        let percent = |name: &str| {
            let used = it.get(name).and_then(Value::as_f64).unwrap_or_default();
            format!("{:.0}", used * 100.0)
        };
        let state = match (is(it, "is_connected"), is(it, "is_draining")) {
            (false, _) => "away",
            (true, true) => "draining",
            (true, false) => "connected",
        };
        vec![
            text(it, "center").to_owned(),
            text(it, "worker").to_owned(),
            state.to_owned(),
            number(it, "held"),
            number(it, "unsettled"),
            percent("cpu"),
            percent("memory"),
            number(it, "offset_ms"),
        ]
    };
    let columns = [
        "CENTER",
        "WORKER",
        "STATE",
        "HELD",
        "UNSETTLED",
        "CPU %",
        "MEMORY %",
        "CLOCK AHEAD (MS)",
    ];
    let clocks = rows(&columns, all(cluster, "clocks").map(of));
    format!("{shown}\n{clocks}")
}

fn shards(answer: &Answer) -> String {
    let of = |it: &Value| {
        let owner = match text(it, "owner") {
            "" => "none",
            owner => owner,
        };
        let stopped = it.get("stopped").and_then(Value::as_object);
        let stopped = stopped.into_iter().flatten();
        let stopped: Vec<String> = stopped
            .map(|(center, why)| format!("{center}: {}", why.as_str().unwrap_or_default()))
            .collect();
        vec![
            number(it, "shard"),
            owner.to_owned(),
            number(it, "epoch"),
            number(it, "applied"),
            number(it, "rows"),
            lag(it),
            stopped.join("; "),
        ]
    };
    let columns = [
        "SHARD",
        "OWNER",
        "EPOCH",
        "APPLIED",
        "MESSAGES",
        "COPIES BEHIND",
        "STOPPED ON",
    ];
    rows(&columns, all(&answer.value, "shards").map(of))
}

/// How far the copy is behind that is furthest behind.
fn lag(shard: &Value) -> String {
    let copies = all(shard, "copies");
    let behind = copies.filter_map(|copy| copy.get("behind").and_then(Value::as_u64));
    behind
        .max()
        .map_or_else(String::new, |most| most.to_string())
}

fn is(it: &Value, name: &str) -> bool {
    it.get(name).and_then(Value::as_bool) == Some(true)
}

fn all<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let all = value.get(name).and_then(Value::as_array);
    all.into_iter().flatten()
}

//! `laneway doctor`: looks at what a bus would run on, at a data directory, or at a server.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use laneway::doctor::{self, Checkup, State};
use serde_json::json;

/// Something that was looked at.
struct Finding {
    about: &'static str,
    state: State,
    what: String,
    change: Option<String>,
}

impl From<doctor::Finding> for Finding {
    fn from(finding: doctor::Finding) -> Self {
        Self {
            about: finding.about,
            state: finding.state,
            what: finding.what,
            change: finding.change,
        }
    }
}

/// Examines an address and prints what was found. Fails if something is bad.
pub(crate) fn run(address: &str, monitor: Option<String>, as_json: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let mut checkup = Checkup::default();
    if let Some(monitor) = monitor {
        checkup = checkup.monitor(monitor);
    }
    let findings = match address.split_once(':') {
        Some(("memory", _)) => vec![fine(
            "memory",
            "a bus in the memory of one process: there is nothing to examine",
        )],
        Some(("file", directory)) => directory_findings(Path::new(directory)),
        Some(("http" | "https", _)) => runtime.block_on(server_findings(address))?,
        Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => {
            runtime.block_on(backup_findings(address))?
        }
        _ => {
            let findings = runtime.block_on(doctor::examine(address, &checkup));
            let findings = findings.map_err(|error| {
                let said = format!("{:#}", anyhow::Error::from(error));
                anyhow!(crate::config::secret::without_secrets_of(address, &said))
            })?;
            findings.into_iter().map(Finding::from).collect()
        }
    };
    let text = if as_json {
        as_lines_of_json(&findings)
    } else {
        as_text(&findings)
    };
    crate::print(&text)?;
    let bad = findings.iter().filter(|f| f.state == State::Bad).count();
    ensure!(bad == 0, "{bad} of {} findings are bad", findings.len());
    Ok(())
}

/// Below this much room a store refuses messages sooner or later.
const LITTLE_ROOM: u64 = 1 << 30;

/// What a data directory, or the directory of a bus, stands on.
fn directory_findings(directory: &Path) -> Vec<Finding> {
    let name = directory.display();
    let data = match fs::metadata(directory) {
        Ok(data) if data.is_dir() => data,
        Ok(_) => {
            let change = "name a directory";
            return vec![bad(
                "directory",
                format!("{name} is not a directory"),
                change,
            )];
        }
        Err(error) => {
            let change =
                "name the directory that is there; `serve` and `Bus::open` make it when they start";
            return vec![bad("directory", format!("{name}: {error}"), change)];
        }
    };
    let mut findings = vec![fine("directory", format!("{name} is there"))];
    // Of a store (`log`), of a server (`messages`, and `bus` if it is embedded). Advice about any other directory would do harm.
    let has = |part: &str| directory.join(part).is_dir();
    if !(has("log") || has("messages") || has("bus")) {
        let what = format!("{name} holds no store of laneway");
        let change =
            "name the directory that `--data-dir`, or the address of a bus, names".to_owned();
        findings.push(finding("contents", State::Doubtful, what, Some(change)));
        return findings;
    }
    findings.push(fine(
        "contents",
        "a store of laneway; it was not opened: whether it is whole shows when it is started",
    ));
    let mode = data.permissions().mode() & 0o777;
    findings.push(if mode.trailing_zeros() >= 6 {
        fine("access", format!("only its owner may read it ({mode:03o})"))
    } else {
        let what =
            format!("others of this machine may look into it ({mode:03o}): payloads are in it");
        let change = format!("chmod 700 {name}");
        finding("access", State::Doubtful, what, Some(change))
    });
    if let Ok(disk) = rustix::fs::statvfs(directory) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let what = format!("{} MiB are free on its disk", free >> 20);
        findings.push(if free >= LITTLE_ROOM {
            fine("room", what)
        } else {
            let change =
                "make room: a store takes no messages when its disk is nearly full".to_owned();
            finding("room", State::Doubtful, what, Some(change))
        });
    }
    findings
}

/// What a backup would be kept in.
#[cfg(feature = "cluster")]
async fn backup_findings(address: &str) -> anyhow::Result<Vec<Finding>> {
    use crate::config::secret::{without_secrets, without_secrets_of};

    let hidden = |error: laneway_backup::Error| without_secrets_of(address, &error.to_string());
    let shown = without_secrets(address);
    let opened = laneway_backup::RedisOptions::new(address).and_then(laneway_backup::Backup::open);
    let backup = opened.map_err(|error| anyhow!("{shown}: {}", hidden(error)))?;
    let look = match backup.look().await {
        Ok(look) => look,
        Err(error) => {
            let what = format!("{shown}: {}", hidden(error));
            let change = "start it, or give its address; a cluster goes on without it";
            return Ok(vec![bad("backup", what, change)]);
        }
    };
    let version = look.version.map(|version| format!(" {version}"));
    let mut findings = vec![fine(
        "backup",
        format!("Redis{} answers", version.unwrap_or_default()),
    )];
    findings.push(match (look.most_bytes, look.eviction.as_deref()) {
        (_, None) => finding(
            "eviction",
            State::Doubtful,
            "this user may not ask what is evicted, or it is a cluster".to_owned(),
            Some("see to it that maxmemory-policy is noeviction".to_owned()),
        ),
        (None, Some(_)) => fine("eviction", "it has no bound, and evicts nothing"),
        (Some(_), Some("noeviction")) => fine("eviction", "it evicts nothing"),
        (Some(bytes), Some(policy)) => finding(
            "eviction",
            State::Doubtful,
            format!("it evicts ({policy}) above {} MiB: a copy that lacks something is filled again, without an end", bytes >> 20),
            Some("CONFIG SET maxmemory-policy noeviction, and room for all rows".to_owned()),
        ),
    });
    if !address.starts_with("rediss") {
        findings.push(finding(
            "encryption",
            State::Doubtful,
            "payloads and the password go over the network as they are".to_owned(),
            Some("write rediss://, unless it is on this machine".to_owned()),
        ));
    }
    Ok(findings)
}

#[cfg(not(feature = "cluster"))]
async fn backup_findings(address: &str) -> anyhow::Result<Vec<Finding>> {
    let shown = crate::config::secret::without_secrets(address);
    anyhow::bail!("{shown} needs the feature `cluster`, which this program was built without")
}

/// What a running server says about itself.
async fn server_findings(address: &str) -> anyhow::Result<Vec<Finding>> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .timeout(Duration::from_secs(10))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .context("cannot set up an HTTP client")?;
    let shown = crate::config::secret::without_secrets(address);
    let address = address.trim_end_matches('/');
    let mut findings = Vec::new();
    for (about, path) in [
        ("alive", "/healthz"),
        ("ready", "/readyz"),
        ("version", "/version"),
    ] {
        let response = match http.get(format!("{address}{path}")).send().await {
            Ok(response) => response,
            Err(error) => {
                let what = format!("{shown}{path}: {}", error.without_url());
                findings.push(bad(
                    about,
                    what,
                    "start it with `laneway serve`, or give its address",
                ));
                break;
            }
        };
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let text = text.trim().replace('\n', "; ");
        let is_laneway = about != "version" || text.contains("\"name\":\"laneway\"");
        findings.push(if !is_laneway {
            let what = format!("{shown} answers, and is no laneway server");
            bad(about, what, "give the address of a server")
        } else if status.is_success() {
            fine(about, text)
        } else {
            let change = "mend what it says; docs/operations.md has what to do when";
            bad(about, format!("{status}: {text}"), change)
        });
    }
    Ok(findings)
}

fn finding(about: &'static str, state: State, what: String, change: Option<String>) -> Finding {
    Finding {
        about,
        state,
        what,
        change,
    }
}

fn fine(about: &'static str, what: impl Into<String>) -> Finding {
    finding(about, State::Fine, what.into(), None)
}

fn bad(about: &'static str, what: String, change: &str) -> Finding {
    finding(about, State::Bad, what, Some(change.to_owned()))
}

fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.about.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let state = word(finding.state);
        let _ = writeln!(
            text,
            "{state:<8}  {:width$}  {}",
            finding.about, finding.what
        );
        if let Some(change) = &finding.change {
            let _ = writeln!(text, "{:8}  {:width$}  → {change}", "", "");
        }
    }
    text
}

fn as_lines_of_json(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let line = json!({
            "about": finding.about,
            "state": word(finding.state),
            "what": finding.what,
            "change": finding.change,
        });
        let _ = writeln!(text, "{line}");
    }
    text
}

fn word(state: State) -> &'static str {
    match state {
        State::Fine => "fine",
        State::Doubtful => "doubtful",
        State::Bad => "bad",
        _ => "unknown",
    }
}

//! `laneway doctor`: looks at what a bus would run on.

use std::fmt::Write;

use anyhow::{Context, ensure};
use laneway::doctor::{self, Checkup, Finding, State};
use serde_json::json;

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
    let findings = runtime.block_on(doctor::examine(address, &checkup))?;
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

//! Log lines on standard error, for people or for programs.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat, LogLevel};

/// Starts logging for the whole process. Called once.
pub(crate) fn start(log: &Log) {
    let lines = layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(targets(log));
    match log.format {
        LogFormat::Human => registry.with(lines.with_target(false)).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
}

/// What is ours at the level that was asked for. Libraries beneath say less: their details drown ours, and are
/// there at `trace` or by `log.filter`.
fn targets(log: &Log) -> Targets {
    let ours = filter(log.level);
    let others = match log.level {
        LogLevel::Debug => LevelFilter::INFO,
        LogLevel::Info => LevelFilter::WARN,
        _ => ours,
    };
    let parts = log.filter.entries().iter();
    Targets::new()
        .with_default(others)
        .with_target("laneway", ours)
        .with_targets(parts.map(|(part, level)| (part.clone(), filter(*level))))
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

//! Log lines on standard error, for people or for programs.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;

use crate::config::{Log, LogFormat, LogLevel};

/// Starts logging for the whole process. Called once.
pub(crate) fn start(log: &Log) {
    let subscriber = fmt()
        .with_writer(io::stderr)
        .with_max_level(filter(log.level))
        .with_ansi(io::stderr().is_terminal());
    match log.format {
        LogFormat::Human => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
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

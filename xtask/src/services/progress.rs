//! What happens, while it happens: a spinner per service on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::Service;

/// The part of the terminal where spinners turn. Whoever shows one adds it here, so that several
/// at a time do not overwrite each other.
pub(crate) fn screen() -> &'static MultiProgress {
    static SCREEN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
    &SCREEN
}

/// One service's part of it.
#[derive(Debug)]
pub(crate) struct Line {
    service: Service,
    spinner: Option<ProgressBar>,
}

impl Line {
    pub(crate) fn of(service: Service) -> Self {
        let spinner = stderr().is_terminal().then(|| {
            let spinner = screen().add(ProgressBar::new_spinner());
            let style =
                ProgressStyle::with_template("{spinner} {prefix:<10} {elapsed:>4} {wide_msg}");
            if let Ok(style) = style {
                spinner.set_style(style);
            }
            spinner.set_prefix(service.name());
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        Self { service, spinner }
    }

    /// How often [`heartbeat`](Self::heartbeat) is worth calling: a spinner shows the newest detail,
    /// plain lines would soon fill a log.
    pub(crate) fn pace(&self) -> Duration {
        if self.spinner.is_some() {
            Duration::from_millis(200)
        } else {
            Duration::from_secs(15)
        }
    }

    /// A new step.
    pub(crate) fn say(&self, what: &str) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(what.to_owned()),
            None => eprintln!("{}: {what}", self.service),
        }
    }

    /// The same step is still going on.
    pub(crate) fn heartbeat(&self, what: &str, detail: &str, elapsed: Duration) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(format!("{what}: {detail}")),
            None => eprintln!("{}: {what}, {} s so far", self.service, elapsed.as_secs()),
        }
    }

    /// The end of it; on a terminal, the line goes away (a table follows).
    pub(crate) fn finish(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

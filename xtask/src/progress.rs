//! One line for every step of a long command: a spinner on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::services::progress::screen;

/// Shows lines above whatever spins at the moment.
pub(crate) fn print(lines: &[String]) {
    screen().suspend(|| {
        for line in lines {
            eprintln!("{line}");
        }
    });
}

/// A step that is under way. Its line stays when it has ended.
pub(crate) struct Step {
    name: String,
    started: Instant,
    /// Hidden where the standard error is not a terminal.
    spinner: ProgressBar,
}

impl Step {
    pub(crate) fn start(name: impl Into<String>) -> Self {
        let name = name.into();
        let spinner = if io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner:.cyan} {prefix}  {wide_msg:.dim}")
                .expect("the template is constant");
            let spinner = screen().add(ProgressBar::new_spinner().with_style(style));
            spinner.set_prefix(name.clone());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        } else {
            eprintln!("start  {name}");
            ProgressBar::hidden()
        };
        Self {
            name,
            started: Instant::now(),
            spinner,
        }
    }

    /// What it is doing right now.
    pub(crate) fn note(&self, note: impl Into<String>) {
        self.spinner.set_message(note.into());
    }

    pub(crate) fn ok(self, outcome: &str) -> Duration {
        self.end("ok   ", outcome)
    }

    pub(crate) fn failed(self, outcome: &str) -> Duration {
        self.end("FAILED", outcome)
    }

    fn end(self, mark: &str, outcome: &str) -> Duration {
        let took = self.started.elapsed();
        self.spinner.finish_and_clear();
        // Services may be starting meanwhile, with spinners of their own.
        screen().suspend(|| {
            eprintln!(
                "{mark:<6} {:<36} {outcome:<30} {:>6.1} s",
                self.name,
                took.as_secs_f64()
            );
        });
        took
    }
}

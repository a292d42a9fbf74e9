//! What is seen while something runs in steps: a bar on a terminal, a line for each step elsewhere.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a run has come, on the standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    /// For people who watch.
    ///
    /// # Panics
    ///
    /// Never: the template is constant.
    #[must_use]
    pub fn shown() -> Self {
        let style = ProgressStyle::with_template("{bar:30.cyan/dim} {pos}/{len}  {msg}  {elapsed}")
            .expect("the template is constant")
            .progress_chars("━╸─");
        let lines = !io::stderr().is_terminal();
        let target = if lines {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        Self {
            bar: ProgressBar::with_draw_target(None, target).with_style(style),
            lines,
        }
    }

    /// For tests.
    #[must_use]
    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
        }
    }

    /// So many steps are to come.
    pub fn begin(&self, steps: usize) {
        self.bar.set_length(steps as u64);
    }

    /// The next step begins.
    pub fn step(&self, what: &str) {
        // The bar counts steps that are over: all before this one.
        let number = self.bar.position();
        if self.lines {
            let all = self.bar.length().unwrap_or_default();
            eprintln!("{:>3}/{all}  {what}", number + 1);
        }
        self.bar.set_message(what.to_owned());
        self.bar.set_position(number + 1);
    }

    /// There is nothing more to show.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

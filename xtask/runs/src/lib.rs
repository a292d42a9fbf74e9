//! The frame of a program that does one of several named things: `laneway-bench` and `laneway-faults`.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `progress` | what is seen while something runs in steps |
//! | `table` | what came of it, for people |
//! | `figures` | what came of it, for other programs |
//!
//! Such a program has a table of [`Entry`]s. [`Choice`] is the part of its arguments that names one of them, [`Progress`]
//! is seen while it runs, [`table`] shows people what came of it and [`Figures`] other programs, and [`exit`] turns it into
//! an exit code:
//!
//! ```
//! use std::process::ExitCode;
//! use clap::Parser;
//! use runs::{Choice, Entry};
//!
//! struct Nap(&'static str);
//!
//! impl Entry for Nap {
//!     fn name(&self) -> &'static str {
//!         self.0
//!     }
//!     fn about(&self) -> &'static str {
//!         "sleeps for a while"
//!     }
//! }
//!
//! #[derive(clap::Parser)]
//! struct Arguments {
//!     #[command(flatten)]
//!     choice: Choice,
//! }
//!
//! fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
//!     let Some(nap) = arguments.choice.of("nap", &[Nap("short"), Nap("long")])? else {
//!         return Ok(ExitCode::SUCCESS);
//!     };
//!     println!("{}", nap.name());
//!     Ok(ExitCode::SUCCESS)
//! }
//! # let chosen = Arguments::parse_from(["naps", "short"]);
//! # assert_eq!(format!("{:?}", runs::exit(run(chosen))), format!("{:?}", ExitCode::SUCCESS));
//! ```

mod figures;
mod progress;
mod table;

use std::process::{ExitCode, ExitStatus};

use anyhow::{Result, bail};

pub use figures::Figures;
pub use progress::Progress;
pub use table::{Medium, table};

/// Something that can be run by its name.
pub trait Entry {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;
    /// What it does, in half a line.
    fn about(&self) -> &'static str;
}

/// The arguments that say which one.
#[derive(Debug, clap::Args)]
pub struct Choice {
    /// Which one; `--list` shows them.
    #[arg(required_unless_present = "list")]
    name: Option<String>,

    /// Show what there is.
    #[arg(long)]
    list: bool,
}

impl Choice {
    /// The entry that was named. None if they were to be listed, which is done then.
    ///
    /// # Errors
    ///
    /// When there is none of that name. `kind` says what they are: "benchmark".
    pub fn of<'a, E: Entry>(&self, kind: &str, all: &'a [E]) -> Result<Option<&'a E>> {
        let Some(name) = self.name.as_deref().filter(|_| !self.list) else {
            for entry in all {
                println!("{:<22} {}", entry.name(), entry.about());
            }
            return Ok(None);
        };
        let found = all.iter().find(|entry| entry.name() == name);
        if found.is_none() {
            let names: Vec<&str> = all.iter().map(Entry::name).collect();
            bail!(
                "there is no {kind} {name}; choose from {}",
                names.join(", ")
            );
        }
        Ok(found)
    }
}

/// The exit code of a program. People are told what is wrong, not where in the program that was seen.
#[must_use]
pub fn exit(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The exit code of a program that ran another one. A program that was killed has no code.
#[must_use]
pub fn exit_as(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::{Choice, Entry};

    impl Entry for &'static str {
        fn name(&self) -> &'static str {
            self
        }
        fn about(&self) -> &'static str {
            ""
        }
    }

    fn choice(name: Option<&str>, list: bool) -> Choice {
        Choice {
            name: name.map(str::to_owned),
            list,
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = choice(Some("c"), false).of("letter", &["a", "b"]);
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "there is no letter c; choose from a, b");
    }

    #[test]
    fn nothing_is_chosen_where_all_are_listed() {
        assert_eq!(choice(Some("a"), true).of("letter", &["a"]).unwrap(), None);
        let chosen = choice(Some("a"), false);
        assert_eq!(chosen.of("letter", &["a"]).unwrap(), Some(&"a"));
    }
}

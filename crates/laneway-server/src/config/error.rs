//! What can be wrong with a configuration. Every message names the place, the key and the fix.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::key::Key;
use super::keys::KEYS;
use super::source::Origin;

/// Everything that is wrong, not only the first thing.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Problems(pub(super) Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not usable")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{origin}: unknown key `{key}`: {}", hint(suggestion.as_deref(), |key| key.name.to_owned()))]
    UnknownKey {
        origin: Origin,
        key: String,
        suggestion: Option<String>,
    },

    #[error(
        "unknown environment variable `{variable}`: {}",
        hint(suggestion.as_deref(), Key::variable)
    )]
    UnknownVariable {
        variable: String,
        suggestion: Option<String>,
    },

    #[error("{origin}: `{section}` is a section: write `[{section}]`, and its keys below it")]
    NotASection { origin: Origin, section: String },

    #[error("{origin}: `{key}` is {value}: expected {accepts}")]
    Unacceptable {
        origin: Origin,
        key: &'static str,
        /// The value as it was written, or what it is if it was not a plain one.
        value: String,
        accepts: String,
    },

    #[error("`{key}` ({origin}): {advice}")]
    Contradiction {
        origin: Origin,
        key: &'static str,
        advice: String,
    },

    #[error("{origin}: {message}")]
    Syntax { origin: Origin, message: String },

    #[error("environment variable {variable} is not valid UTF-8: set it again, or unset it")]
    NotUtf8 { variable: String },
}

impl Problem {
    /// Where it is: the file from top to bottom, then the environment, then the flags.
    pub(super) fn place(&self) -> (u8, usize) {
        let origin = match self {
            Self::UnknownVariable { .. } | Self::NotUtf8 { .. } => return (2, 0),
            Self::UnknownKey { origin, .. }
            | Self::NotASection { origin, .. }
            | Self::Unacceptable { origin, .. }
            | Self::Contradiction { origin, .. }
            | Self::Syntax { origin, .. } => origin,
        };
        match origin {
            Origin::Default => (0, 0),
            Origin::File { line, .. } => (1, *line),
            Origin::Environment { .. } => (2, 0),
            Origin::Flag { .. } => (3, 0),
        }
    }
}

/// The nearest name, or all of them if none is near.
fn hint(suggestion: Option<&str>, name: fn(&Key) -> String) -> String {
    if let Some(suggestion) = suggestion {
        return format!("did you mean `{suggestion}`?");
    }
    let names: Vec<String> = KEYS.iter().map(name).collect();
    format!("there are only {}", names.join(", "))
}

/// A file that was asked for and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the configuration file {}", path.display())]
pub(crate) struct Unreadable {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

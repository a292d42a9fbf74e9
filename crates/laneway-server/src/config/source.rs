//! Where values are written: the file, the environment, the flags.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::error::{Problem, Unreadable};
use super::key::{ENVIRONMENT_PREFIX, Form, Key};
use super::keys::KEYS;
use super::overrides::Overrides;
use super::secret::without_secrets;

/// The file that is read if none is named.
const DEFAULT_FILE: &str = "laneway.toml";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment { variable: String },
    Flag { flag: &'static str },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Flag { flag } => write!(f, "flag --{flag}"),
        }
    }
}

/// All sources, as they were found.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(super) file: Option<File>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) flags: Overrides,
}

#[derive(Debug)]
pub(crate) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// One value, as it was written for one key.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(super) key: &'static Key,
    pub(super) origin: Origin,
    written: Written,
}

#[derive(Debug)]
enum Written {
    /// TOML text, or anything from the environment and the flags, which know no types.
    Text(String),
    /// A TOML integer, in decimal.
    Integer(String),
    /// Any other TOML value, by the name of its type.
    Other(&'static str),
}

impl Inputs {
    /// Reads the file, if there is one, and looks at the environment.
    pub(crate) fn gather(file: Option<PathBuf>, flags: Overrides) -> Result<Self, Unreadable> {
        let file = match file {
            Some(path) => Some(File::open(path)?),
            None => File::open_default()?,
        };
        Ok(Self {
            file,
            environment: env::vars_os().collect(),
            flags,
        })
    }

    pub(crate) fn file_name(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|file| file.path.clone())
    }

    /// All values, from the weakest source to the strongest, and what could not be understood.
    pub(super) fn read(self) -> (Vec<Setting>, Vec<Problem>) {
        let mut reader = Reader::default();
        if let Some(file) = &self.file {
            reader.read_file(file);
        }
        reader.read_environment(self.environment);
        reader.read_flags(self.flags);
        (reader.settings, reader.problems)
    }
}

impl File {
    fn open(path: PathBuf) -> Result<Self, Unreadable> {
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self { path, text }),
            Err(source) => Err(Unreadable { path, source }),
        }
    }

    fn open_default() -> Result<Option<Self>, Unreadable> {
        match Self::open(DEFAULT_FILE.into()) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        let path = self.path.clone();
        Origin::File { path, line }
    }
}

impl Setting {
    /// Checks the value and puts it into the configuration.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), Problem> {
        let (text, form_fits) = match &self.written {
            Written::Text(text) => {
                let untyped = !matches!(self.origin, Origin::File { .. });
                (text.as_str(), untyped || self.key.form != Form::Integer)
            }
            Written::Integer(text) => (text.as_str(), self.key.form != Form::Text),
            Written::Other(_) => ("", false),
        };
        if form_fits && (self.key.read)(config, text).is_some() {
            return Ok(());
        }
        Err(self.unacceptable(form_fits))
    }

    fn unacceptable(&self, form_fits: bool) -> Problem {
        let form = match self.key.form {
            _ if form_fits => "",
            Form::Text => " (a text, in quotes)",
            Form::Integer => " (without quotes)",
            Form::Size => " (a number without quotes, or a text with a unit)",
        };
        Problem::Unacceptable {
            origin: self.origin.clone(),
            key: self.key.name,
            value: match &self.written {
                // It may be an address with a password.
                Written::Text(text) if text.contains("://") => {
                    format!("{:?}", without_secrets(text))
                }
                Written::Text(text) => format!("{text:?}"),
                Written::Integer(text) => text.clone(),
                Written::Other(kind) => format!("of the type {kind}"),
            },
            accepts: format!("{}{form}", self.key.accepts),
        }
    }
}

/// Collects what the sources say.
#[derive(Default)]
struct Reader {
    settings: Vec<Setting>,
    problems: Vec<Problem>,
}

impl Reader {
    fn read_file(&mut self, file: &File) {
        match DeTable::parse(&file.text) {
            Ok(table) => self.read_table(file, "", table.get_ref()),
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                self.problems.push(Problem::Syntax {
                    origin: file.origin(offset),
                    message: error.message().to_owned(),
                });
            }
        }
    }

    fn read_table(&mut self, file: &File, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let origin = file.origin(name.span().start);
            let name = format!("{prefix}{}", name.get_ref());
            let is_section = KEYS.iter().any(|key| key.section() == name);
            match (Key::find(&name), value.get_ref()) {
                (Some(key), _) => self.settings.push(Setting {
                    key,
                    origin,
                    written: Written::from_toml(value),
                }),
                (None, DeValue::Table(table)) if is_section || !table.is_empty() => {
                    self.read_table(file, &format!("{name}."), table);
                }
                (None, _) if is_section => self.problems.push(Problem::NotASection {
                    origin,
                    section: name,
                }),
                (None, _) => self.problems.push(Problem::UnknownKey {
                    origin,
                    suggestion: Key::nearest(&name).map(|key| key.name.to_owned()),
                    key: name,
                }),
            }
        }
    }

    fn read_environment(&mut self, variables: Vec<(OsString, OsString)>) {
        let mut variables: Vec<_> = variables
            .into_iter()
            // A name that is not UTF-8 cannot be one of ours.
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX) && !is_foreign(name))
            .collect();
        // The order of the environment is an accident; that of messages should not be.
        variables.sort();
        for (variable, value) in variables {
            let key = KEYS.iter().find(|key| key.variable() == variable);
            match (key, value.into_string()) {
                (Some(key), Ok(text)) => self.settings.push(Setting {
                    key,
                    origin: Origin::Environment { variable },
                    written: Written::Text(text),
                }),
                (Some(_), Err(_)) => self.problems.push(Problem::NotUtf8 { variable }),
                (None, _) => self.problems.push(Problem::UnknownVariable {
                    suggestion: nearest_variable(&variable),
                    variable,
                }),
            }
        }
    }

    fn read_flags(&mut self, flags: Overrides) {
        let settings = flags.0.into_iter().map(|(key, text)| Setting {
            key,
            origin: Origin::Flag { flag: key.flag },
            written: Written::Text(text),
        });
        self.settings.extend(settings);
    }
}

impl Written {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Self {
        match value.get_ref() {
            DeValue::String(text) => Self::Text(text.clone().into_owned()),
            DeValue::Integer(integer) => Self::Integer(decimal(integer)),
            other => Self::Other(other.type_str()),
        }
    }
}

/// TOML has hexadecimal, octal and binary integers too. Those beyond `i128` stay as they are
/// written, which no key accepts.
fn decimal(integer: &toml::de::DeInteger<'_>) -> String {
    i128::from_str_radix(integer.as_str(), integer.radix())
        .map_or_else(|_| integer.as_str().to_owned(), |number| number.to_string())
}

/// Variables with our prefix that are not settings.
///
/// `LANEWAY_CONFIG` names the file, `LANEWAY_SERVER` the server that commands talk to, `LANEWAY_BUS` the
/// bus that `laneway bus` looks at. `LANEWAY_TEST_*` is for the project's own tests. The others are
/// what Kubernetes sets in every pod of a namespace with a service called `laneway`; refusing to
/// start because of them would be hard to understand.
fn is_foreign(variable: &str) -> bool {
    variable == "LANEWAY_CONFIG"
        || variable == "LANEWAY_SERVER"
        || variable == "LANEWAY_BUS"
        || variable == "LANEWAY_SERVICE_HOST"
        || variable == "LANEWAY_PORT"
        || ["LANEWAY_TEST_", "LANEWAY_SERVICE_PORT", "LANEWAY_PORT_"]
            .iter()
            .any(|prefix| variable.starts_with(prefix))
}

fn nearest_variable(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(ENVIRONMENT_PREFIX)?.to_lowercase();
    Key::nearest(&name.replace("__", ".")).map(Key::variable)
}

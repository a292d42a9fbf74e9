//! What a setting is.

use super::Config;
use super::keys::KEYS;

/// The prefix of all environment variables that set a key.
pub(crate) const ENVIRONMENT_PREFIX: &str = "LANEWAY_";

/// One setting.
pub(crate) struct Key {
    /// The section and the name in it, as in the file: `serve.listen`.
    pub(crate) name: &'static str,
    /// The flag, without its dashes.
    pub(crate) flag: &'static str,
    /// What stands for the value in `--help`.
    pub(crate) placeholder: &'static str,
    pub(crate) help: &'static str,
    /// What is accepted, in the words of an error message: "expected …".
    pub(crate) accepts: &'static str,
    /// How it is written in TOML.
    pub(crate) form: Form,
    /// Reads the value from text. `None` if it is not acceptable.
    pub(crate) read: fn(&mut Config, &str) -> Option<()>,
    /// The value as text that [`Key::read`] accepts.
    pub(crate) show: fn(&Config) -> String,
}

/// The TOML type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Integer,
    /// A number of bytes: an integer, or a text with a unit.
    Size,
}

impl Key {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable of this key: `LANEWAY_SERVE__LISTEN`.
    pub(crate) fn variable(&self) -> String {
        let name = self.name.replace('.', "__").to_uppercase();
        format!("{ENVIRONMENT_PREFIX}{name}")
    }

    pub(crate) fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section.
    pub(crate) fn leaf(&self) -> &'static str {
        self.name
            .split_once('.')
            .map_or(self.name, |(_, leaf)| leaf)
    }

    /// The value as it is written in TOML.
    pub(crate) fn show_toml(&self, config: &Config) -> String {
        let text = (self.show)(config);
        match self.form {
            Form::Integer | Form::Size => text,
            Form::Text => format!("{text:?}"),
        }
    }

    /// The key whose name is nearest to one that does not exist, if any is near.
    ///
    /// A name without its section, or in the wrong one, is near too.
    pub(crate) fn nearest(unknown: &str) -> Option<&'static Self> {
        let unknown_leaf = unknown.rsplit('.').next().unwrap_or(unknown);
        KEYS.iter()
            .map(|key| {
                let whole = strsim::normalized_damerau_levenshtein(unknown, key.name);
                let leaf = strsim::normalized_damerau_levenshtein(unknown_leaf, key.leaf());
                // The whole name says more; the leaf decides only where the section is off.
                (key, whole.max(leaf - 0.01))
            })
            .filter(|(_, likeness)| *likeness >= 0.6)
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .map(|(key, _)| key)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

//! Settings on the command line: one flag for each key, made from the table.

use clap::{Arg, ArgMatches, Args, FromArgMatches};

use super::key::Key;
use super::keys::KEYS;

/// The settings that were given as flags, as they were typed. They are checked together with those
/// of the file and the environment, so that a mistake reads the same everywhere.
#[derive(Debug, Default)]
pub(crate) struct Overrides(pub(super) Vec<(&'static Key, String)>);

impl Args for Overrides {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = super::Config::default();
        command.args(KEYS.iter().map(|key| {
            let (help, accepts, default) = (key.help, key.accepts, (key.show)(&defaults));
            let arg = Arg::new(key.name);
            // What many try first: better an answer that shows the form than a wrong guess.
            let arg = if key.flag == "listen" {
                arg.alias("port")
            } else {
                arg
            };
            arg.long(key.flag)
                .value_name(key.placeholder)
                .help(format!("{help} [default: {default}]"))
                .long_help(format!("{help}\nExpected: {accepts}\n[default: {default}]"))
                .help_heading("Settings")
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut overrides = Self::default();
        overrides.update_from_arg_matches(matches)?;
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(KEYS.iter().filter_map(|key| {
            let text = matches.get_one::<String>(key.name)?;
            Some((key, text.clone()))
        }));
        Ok(())
    }
}

//! Asking what there is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::{Error, Message, State, Timestamp};

/// Which messages to list: those for which everything holds that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Of this topic.
    pub topic: Option<String>,
    /// In this state.
    pub state: StateName,
    /// Due at or after this moment. Ended messages: ended at or after it.
    pub from: Option<Timestamp>,
    /// Due before this moment. Ended messages: ended before it.
    pub until: Option<Timestamp>,
    /// Where the page before this one ended.
    pub after: Option<Cursor>,
    /// How many at most; never more than [`Query::MAX_LIMIT`].
    pub limit: usize,
}

impl Query {
    /// The most messages on a page.
    pub const MAX_LIMIT: usize = 1000;

    /// Everything in a state, a hundred at a time.
    #[must_use]
    pub fn new(state: StateName) -> Self {
        Self {
            topic: None,
            state,
            from: None,
            until: None,
            after: None,
            limit: 100,
        }
    }
}

/// Messages, in the order in which they fire or ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The messages. A page may have fewer than asked for although more follow: it ends after some megabytes.
    pub messages: Vec<Message>,
    /// Where to go on. `None`: that was all.
    pub next: Option<Cursor>,
}

/// A place between two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub(crate) at: u64,
    pub(crate) serial: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.at, self.serial)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let (at, serial) = text.split_once('.')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(Self {
                at: number(at)?,
                serial: number(serial)?,
            })
        };
        parsed().ok_or_else(|| {
            let problem = format!("{text:?} is not a place; use `next` of the page before");
            Error::invalid("after", problem)
        })
    }
}

/// The states, without what belongs to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StateName {
    /// Scheduled for its moment.
    Scheduled,
    /// Being delivered.
    Firing,
    /// Its receiver took it.
    Delivered,
    /// Given up.
    Dead,
    /// Taken back.
    Withdrawn,
}

impl StateName {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Scheduled,
        Self::Firing,
        Self::Delivered,
        Self::Dead,
        Self::Withdrawn,
    ];

    /// The name, as it is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Firing => "firing",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl From<State> for StateName {
    fn from(state: State) -> Self {
        match state {
            State::Scheduled { .. } => Self::Scheduled,
            State::Firing { .. } => Self::Firing,
            State::Delivered { .. } => Self::Delivered,
            State::Dead { .. } => Self::Dead,
            State::Withdrawn { .. } => Self::Withdrawn,
        }
    }
}

impl FromStr for StateName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|state| state.name() == name);
        found.ok_or_else(|| {
            let problem = format!(
                "{name:?} is not a state; use scheduled, firing, delivered, dead or withdrawn"
            );
            Error::invalid("state", problem)
        })
    }
}

/// How many messages are in which state, by topic.
pub type Counts = BTreeMap<String, TopicCounts>;

/// How many messages of a topic are in which state. Ended ones count until they are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// Scheduled for their moment.
    pub scheduled: u64,
    /// Being delivered.
    pub firing: u64,
    /// Taken by their receivers.
    pub delivered: u64,
    /// Given up.
    pub dead: u64,
    /// Taken back.
    pub withdrawn: u64,
}

impl TopicCounts {
    pub(crate) fn of(&mut self, state: StateName) -> &mut u64 {
        match state {
            StateName::Scheduled => &mut self.scheduled,
            StateName::Firing => &mut self.firing,
            StateName::Delivered => &mut self.delivered,
            StateName::Dead => &mut self.dead,
            StateName::Withdrawn => &mut self.withdrawn,
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_read_back() {
        for state in StateName::ALL {
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert!("late".parse::<StateName>().is_err());
        let cursor = Cursor {
            at: u64::MAX,
            serial: 17,
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", ".", "1", "x.1", "1.1.1"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}

//! What a topic may be called.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::error::Error;

/// The longest name, without the ending of a reserved one.
const MAX_LENGTH: usize = 255;

/// The name of a topic: 1 to 255 visible ASCII characters, no spaces.
///
/// Two endings are reserved for the topics that the bus keeps next to a topic: `.dead` holds events
/// that failed for good, `.parked` holds the events of keys that wait for release. Such names can be
/// looked up and read, but not declared. A reserved ending comes on top of the 255.
///
/// What a broker cannot have in its own names (`*`, `>`, `/` and the like) is that broker's to encode.
///
/// ```
/// use laneway::topic::TopicName;
///
/// let orders = TopicName::new("shop.orders")?;
/// assert_eq!(orders.dead().as_str(), "shop.orders.dead");
/// assert!(TopicName::new("shop orders").is_err());
/// # Ok::<(), laneway::topic::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(SmolStr);

/// An ending that the bus keeps for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reserved {
    /// `.dead`
    Dead,
    /// `.parked`
    Parked,
}

impl Reserved {
    const ALL: [Self; 2] = [Self::Dead, Self::Parked];

    /// The ending.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Dead => ".dead",
            Self::Parked => ".parked",
        }
    }

    /// What topics of this ending hold.
    pub(super) const fn holds(self) -> &'static str {
        match self {
            Self::Dead => "events that failed for good",
            Self::Parked => "events of keys that wait for release",
        }
    }

    /// The ending of a name, if it is a reserved one.
    fn of(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|reserved| name.ends_with(reserved.suffix()))
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suffix())
    }
}

impl TopicName {
    /// Checks a name. Names with one reserved ending pass: see [`TopicName::reserved`].
    ///
    /// # Errors
    /// If it is empty, too long, or has anything but visible ASCII; or if nothing, or a second
    /// reserved ending, stands before a reserved one.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let base = base(name);
        if let Some((at, character)) = name.char_indices().find(|(_, c)| !c.is_ascii_graphic()) {
            return Err(Error::NameCharacter { character, at });
        }
        if base.is_empty() {
            return Err(Error::NameEmpty);
        }
        if base.len() > MAX_LENGTH {
            return Err(Error::NameTooLong(base.len()));
        }
        match Reserved::of(base) {
            Some(suffix) if base.len() != name.len() => Err(Error::NameReserved { suffix }),
            _ => Ok(Self(SmolStr::new(name))),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The reserved ending of this name, if it has one.
    #[must_use]
    pub fn reserved(&self) -> Option<Reserved> {
        Reserved::of(&self.0)
    }

    /// The topic next to which this one is kept, or itself.
    #[must_use]
    pub fn base(&self) -> Self {
        Self(SmolStr::new(base(&self.0)))
    }

    /// Where events of this topic go that failed for good.
    #[must_use]
    pub fn dead(&self) -> Self {
        self.beside(Reserved::Dead)
    }

    /// Where events of keys that wait for release are kept.
    #[must_use]
    pub fn parked(&self) -> Self {
        self.beside(Reserved::Parked)
    }

    fn beside(&self, reserved: Reserved) -> Self {
        Self(format_smolstr!("{}{reserved}", base(&self.0)))
    }
}

/// The name without its reserved ending.
fn base(name: &str) -> &str {
    Reserved::of(name)
        .and_then(|reserved| name.strip_suffix(reserved.suffix()))
        .unwrap_or(name)
}

impl FromStr for TopicName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<&str> for TopicName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<String> for TopicName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0.into()
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_character_is_decided() {
        for code in 0..=255_u8 {
            let name = char::from(code).to_string();
            let visible = (0x21..=0x7e).contains(&code);
            assert_eq!(TopicName::new(&name).is_ok(), visible, "{name:?}");
        }
    }

    #[test]
    fn length_is_1_to_255_and_endings_come_on_top() {
        assert_eq!(TopicName::new(""), Err(Error::NameEmpty));
        assert_eq!(
            TopicName::new("x".repeat(256)),
            Err(Error::NameTooLong(256))
        );
        let longest = TopicName::new("x".repeat(255)).expect("the longest name");
        for derived in [longest.dead(), longest.parked()] {
            assert_eq!(TopicName::new(derived.as_str()), Ok(derived.clone()));
            assert_eq!(derived.base(), longest);
        }
    }

    #[test]
    fn a_name_is_its_text_in_maps() {
        let name = TopicName::new("orders").expect("valid");
        let counts = std::collections::HashMap::from([(name, 1)]);
        assert_eq!(counts.get("orders"), Some(&1));
    }

    #[test]
    fn reserved_endings_are_recognised_and_never_stacked() {
        let orders = TopicName::new("orders").expect("a name");
        assert_eq!(orders.reserved(), None);
        assert_eq!(orders.base(), orders);
        assert_eq!(orders.dead().reserved(), Some(Reserved::Dead));
        assert_eq!(orders.parked().reserved(), Some(Reserved::Parked));
        // A dead letter of a dead letter stays where it is.
        assert_eq!(orders.dead().dead(), orders.dead());
        assert_eq!(orders.dead().parked(), orders.parked());
        for stacked in ["orders.dead.dead", "orders.parked.dead"] {
            assert!(
                matches!(TopicName::new(stacked), Err(Error::NameReserved { .. })),
                "{stacked}"
            );
        }
        assert_eq!(TopicName::new(".dead"), Err(Error::NameEmpty));
        assert!(TopicName::new("dead").is_ok());
        assert!(TopicName::new("orders.dead.x").is_ok());
    }
}

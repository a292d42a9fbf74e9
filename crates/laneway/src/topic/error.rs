//! Why a topic name or declaration is refused.

use thiserror::Error as ThisError;

use super::name::Reserved;

/// Why a topic name or declaration is refused.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// There is no name.
    #[error("name is empty: give the topic 1 to 255 visible ASCII characters")]
    NameEmpty,
    /// The name is too long.
    #[error("name is {0} characters long: shorten it to 255 or less")]
    NameTooLong(usize),
    /// The name has a space, a control character or something outside ASCII.
    #[error("name has {character:?} at byte {at}: use visible ASCII characters without spaces")]
    NameCharacter {
        /// The character.
        character: char,
        /// Where it starts.
        at: usize,
    },
    /// The name belongs to a topic that the bus keeps by itself.
    #[error("name ends in {suffix}, where the bus keeps {}: choose another ending", suffix.holds())]
    NameReserved {
        /// The ending.
        suffix: Reserved,
    },
    /// The number of partitions is out of range.
    #[error("partitions is {0}: use 1 to 1024")]
    Partitions(u32),
    /// There are no replicas.
    #[error("replicas is 0: use at least 1, or leave it out for the broker's default")]
    NoReplicas,
    /// A retention limit of zero would keep nothing.
    #[error("retention.{0} is 0, which keeps nothing: raise it, or leave it out for no limit")]
    KeepsNothing(&'static str),
    /// Text is not a duration or a size.
    #[error(transparent)]
    Unit(#[from] laneway_units::Error),
}

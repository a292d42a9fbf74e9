//! Why something is not a `CloudEvent`, or not one that fits an envelope.

use thiserror::Error as ThisError;

use super::super::error::Problem;
use crate::headers::HeaderError;

/// Why something is not a `CloudEvent`, or not one that fits an envelope.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The body of structured mode is not one JSON object.
    #[error("event is not one JSON object in UTF-8: {0}")]
    Malformed(String),
    /// An attribute, or the data, breaks the rules.
    #[error("{name} {problem}")]
    Attribute {
        /// The attribute, by its `CloudEvents` name.
        name: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The event follows another version of the specification.
    #[error("specversion is {0:?}: only 1.0 is known, send that")]
    SpecVersion(String),
    /// An attribute name is outside `a-z0-9`.
    #[error("attribute name {0:?} is not made of a-z and 0-9: rename it")]
    Name(String),
    /// An extension has the name of an attribute that has its own place.
    #[error("{0} is not an extension: set it on the envelope or the event")]
    Reserved(String),
    /// A number is outside the 32 bits of a `CloudEvents` integer.
    #[error("{0} is not a whole number of 32 bits: send it as a string")]
    Integer(String),
    /// A URI is empty or has characters that no URI has.
    #[error("{0} is not a URI reference: percent-encode what is outside its alphabet")]
    Uri(String),
    /// A header value has a percent sign that starts no byte.
    #[error("{0} is not percent-encoded UTF-8: write a percent sign as %25")]
    Percent(String),
    /// The content type stands in two headers that differ.
    #[error("datacontenttype is {0:?} in one header and {1:?} in another: keep one")]
    TwoContentTypes(String, String),
    /// The data is there twice.
    #[error("data and data_base64 are both there: keep one")]
    TwoData,
    /// The headers of binary mode are over their limits.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Error {
    pub(super) fn attribute(name: &str, problem: Problem) -> Self {
        Self::Attribute {
            name: name.to_owned(),
            problem,
        }
    }
}

//! Finding the aggregate id of a message that may come from anywhere.

use std::fmt;

use super::Envelope;
use super::aggregate_id::AggregateId;
use super::error::Error;
use crate::headers::{self, Headers};

/// What carried a message: the places besides the envelope where an aggregate id may be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Carrier<'a> {
    /// The headers of the message.
    pub headers: Option<&'a Headers>,
    /// The key of the record (Kafka).
    pub key: Option<&'a [u8]>,
    /// The subject that the message was published to (NATS). Leave it out where the last token is
    /// not the sender's, such as a partition number.
    pub subject: Option<&'a str>,
}

/// Where an aggregate id was found, in the order in which the places are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The field `aggregate_id` of the envelope.
    Envelope,
    /// The header `X-Aggregate-ID`, in any case.
    Header,
    /// The key of the record.
    Key,
    /// The last token of the subject.
    Subject,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Envelope => "envelope",
            Self::Header => "header X-Aggregate-ID",
            Self::Key => "record key",
            Self::Subject => "last token of the subject",
        })
    }
}

/// A place that had something, which is not an aggregate id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The place.
    pub origin: Origin,
    /// Why it was passed over.
    pub error: Error,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.error)
    }
}

/// The outcome of a search for an aggregate id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extraction {
    /// The first valid id, and where it was.
    pub found: Option<(AggregateId, Origin)>,
    /// What was passed over on the way, in order.
    pub rejected: Vec<Rejected>,
}

/// Finds the aggregate id of a message: the first valid one of
///
/// 1. the envelope,
/// 2. the header `X-Aggregate-ID`, its name in any case,
/// 3. the key of the record,
/// 4. the last token of the subject (after the last dot).
///
/// A place that holds something invalid is reported and passed over. Values are taken as they are:
/// no trimming, since two keys that differ in whitespace may live on two partitions.
///
/// ```
/// use laneway::envelope::{Carrier, Origin, extract_aggregate_id};
///
/// let carrier = Carrier {
///     key: Some(b"not an id"),
///     subject: Some("shop.orders.order-1042"),
///     ..Carrier::default()
/// };
/// let search = extract_aggregate_id(None, &carrier);
/// let (id, origin) = search.found.expect("the subject has one");
/// assert_eq!((id.as_str(), origin), ("order-1042", Origin::Subject));
/// assert_eq!(search.rejected[0].origin, Origin::Key);
/// ```
#[must_use]
pub fn extract_aggregate_id(envelope: Option<&Envelope>, carrier: &Carrier<'_>) -> Extraction {
    if let Some(envelope) = envelope {
        let id = envelope.aggregate_id().clone();
        return Extraction {
            found: Some((id, Origin::Envelope)),
            rejected: Vec::new(),
        };
    }
    let headers = carrier
        .headers
        .into_iter()
        .flat_map(|headers| headers.get_all(headers::AGGREGATE_ID))
        .map(|value| (Origin::Header, value));
    let key = carrier.key.map(|key| (Origin::Key, key));
    let token = carrier
        .subject
        .and_then(|subject| subject.rsplit('.').next())
        .map(|token| (Origin::Subject, token.as_bytes()));

    let mut rejected = Vec::new();
    for (origin, candidate) in headers.chain(key).chain(token) {
        match AggregateId::from_bytes(candidate) {
            Ok(id) => {
                return Extraction {
                    found: Some((id, origin)),
                    rejected,
                };
            }
            Err(error) => rejected.push(Rejected { origin, error }),
        }
    }
    Extraction {
        found: None,
        rejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        Envelope::builder("from-envelope", "Happened")
            .json(&1)
            .expect("a valid envelope")
    }

    fn header(value: &'static str) -> Headers {
        let mut headers = Headers::new();
        headers.append("x-AGGREGATE-id", value).expect("fits");
        headers
    }

    fn found(envelope: Option<&Envelope>, carrier: &Carrier<'_>) -> Option<(String, Origin)> {
        extract_aggregate_id(envelope, carrier)
            .found
            .map(|(id, origin)| (id.to_string(), origin))
    }

    #[test]
    fn the_first_place_that_has_one_wins() {
        let envelope = envelope();
        let headers = header("from-header");
        let all = Carrier {
            headers: Some(&headers),
            key: Some(b"from-key"),
            subject: Some("a.b.from-subject"),
        };
        let expected = |id: &str, origin| Some((id.to_owned(), origin));
        assert_eq!(
            found(Some(&envelope), &all),
            expected("from-envelope", Origin::Envelope)
        );
        assert_eq!(found(None, &all), expected("from-header", Origin::Header));
        let all = Carrier {
            headers: None,
            ..all
        };
        assert_eq!(found(None, &all), expected("from-key", Origin::Key));
        let all = Carrier { key: None, ..all };
        assert_eq!(found(None, &all), expected("from-subject", Origin::Subject));
        assert_eq!(found(None, &Carrier::default()), None);
    }

    #[test]
    fn invalid_candidates_are_passed_over_and_reported_in_order() {
        let mut headers = header("not valid");
        headers.append("X-Aggregate-ID", "").expect("fits");
        let carrier = Carrier {
            headers: Some(&headers),
            key: Some(b"\xff"),
            subject: Some("orders.*"),
        };
        let search = extract_aggregate_id(None, &carrier);
        assert_eq!(search.found, None);
        let reports: Vec<String> = search.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(
            reports,
            [
                "header X-Aggregate-ID: aggregate_id has ' ' at byte 3: use only A-Z a-z 0-9 : _ - . /",
                "header X-Aggregate-ID: aggregate_id is empty: give it at least one visible character",
                "record key: aggregate_id is not UTF-8: encode it as UTF-8",
                "last token of the subject: aggregate_id has '*' at byte 0: use only A-Z a-z 0-9 : _ - . /",
            ]
        );
    }

    #[test]
    fn only_the_last_token_of_a_subject_counts() {
        for (subject, expected) in [
            ("orders", Some("orders")),
            ("a.b.order-1", Some("order-1")),
            ("order-1.", None),
            ("order-1.x@y", None),
        ] {
            let carrier = Carrier {
                subject: Some(subject),
                ..Carrier::default()
            };
            let id = found(None, &carrier).map(|(id, _)| id);
            assert_eq!(id.as_deref(), expected, "{subject}");
        }
    }
}

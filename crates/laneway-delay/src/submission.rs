//! What is handed in.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::store::Operation;
use crate::{Error, MessageId, Schedule, StateName, Timestamp};

const MAX_NAME_BYTES: usize = 256;
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
const MAX_EXTRAS: usize = 64;
const MAX_EXTRAS_BYTES: usize = 16 << 10;
const MAX_WAITS: usize = 32;

/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_hours(366 * 24);

/// The least time that a receiver is given.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// A message that is to be delivered later.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::{Submission, Target, When};
///
/// let target = Target::callback("https://example.com/reminders");
/// let submission = Submission::new("reminders", When::After(Duration::from_secs(60)), target)
///     .payload(r#"{"cart":17}"#)
///     .content_type("application/json");
/// submission.check()?;
/// # Ok::<(), laneway_delay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The caller's own id; a new one is made without it.
    pub id: Option<MessageId>,
    /// A second submission with this key is the same message, for as long as keys are kept.
    pub idempotency_key: Option<String>,
    /// What it belongs to: schedules, figures and listings go by topic.
    pub topic: String,
    /// What is delivered.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: Option<String>,
    /// When it is due.
    pub when: When,
    /// Where it goes.
    pub target: Target,
    /// The waits between attempts, if not those of the topic.
    pub retry: Option<Schedule>,
    /// Whatever the caller wants to find again with the message.
    pub metadata: BTreeMap<String, String>,
    /// Whether it takes the place of the message that has its id, if there is one: one that waits or has ended. It is
    /// refused while that one is being delivered, and while it may have been.
    pub replace: bool,
}

/// When a message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long after it was accepted.
    After(Duration),
    /// At this moment. One in the past means at once.
    At(Timestamp),
}

/// How much later a message shall be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extend {
    /// This much later than it is due now.
    By(Duration),
    /// At this moment, which has to be later.
    To(Timestamp),
}

/// How a message is taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Withdraw {
    /// Only if it was certainly not delivered: after a yes it was not, and will not be.
    #[default]
    Unsent,
    /// In any case: no further attempts. It may have been delivered if an attempt runs, or gave no answer;
    /// [`Record::is_in_doubt`](crate::Record::is_in_doubt) tells.
    Stop,
}

impl From<Withdraw> for Operation {
    fn from(how: Withdraw) -> Self {
        match how {
            Withdraw::Unsent => Self::Withdraw,
            Withdraw::Stop => Self::Stop,
        }
    }
}

/// Where a message goes when it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// An HTTP request.
    Callback(Callback),
    /// An event on a topic of the bus.
    Bus(BusTarget),
}

/// An HTTP request that delivers a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    /// The address that is called.
    pub url: String,
    /// The method of the request.
    pub method: Method,
    /// Headers of the request, beside those that the client sets itself.
    pub headers: Vec<(String, String)>,
    /// How long an attempt may take; the client's own limit without it.
    pub timeout: Option<Duration>,
}

/// The method of a callback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// `GET`. A payload is sent too, if there is one.
    Get,
    /// `POST`.
    #[default]
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// The method as HTTP writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    /// In any case.
    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL
            .into_iter()
            .find(|method| method.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let problem = format!("{name:?} is not supported; use GET, POST, PUT, PATCH or DELETE");
            Error::invalid("target.method", problem)
        })
    }
}

/// An event on a topic of the bus that delivers a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusTarget {
    /// The topic of the bus, a domain topic.
    pub topic: String,
    /// The aggregate: events of one aggregate that are due in some order are published in that order.
    pub aggregate_id: String,
    /// The type of the event.
    pub event_type: String,
}

impl Target {
    /// A `POST` to this address.
    #[must_use]
    pub fn callback(url: impl Into<String>) -> Self {
        Self::Callback(Callback {
            url: url.into(),
            method: Method::Post,
            headers: Vec::new(),
            timeout: None,
        })
    }

    /// An event on this topic.
    #[must_use]
    pub fn bus(
        topic: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        Self::Bus(BusTarget {
            topic: topic.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
        })
    }
}

impl Submission {
    /// An empty message for a target.
    #[must_use]
    pub fn new(topic: impl Into<String>, when: When, target: Target) -> Self {
        Self {
            id: None,
            idempotency_key: None,
            topic: topic.into(),
            payload: Bytes::new(),
            content_type: None,
            when,
            target,
            retry: None,
            metadata: BTreeMap::new(),
            replace: false,
        }
    }

    /// With an id of the caller's own.
    #[must_use]
    pub fn id(self, id: MessageId) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// With an idempotency key.
    #[must_use]
    pub fn idempotency_key(self, key: impl Into<String>) -> Self {
        Self {
            idempotency_key: Some(key.into()),
            ..self
        }
    }

    /// With a payload.
    #[must_use]
    pub fn payload(self, payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..self
        }
    }

    /// With the type of its payload.
    #[must_use]
    pub fn content_type(self, content_type: impl Into<String>) -> Self {
        Self {
            content_type: Some(content_type.into()),
            ..self
        }
    }

    /// With waits of its own between attempts.
    #[must_use]
    pub fn retry(self, retry: Schedule) -> Self {
        Self {
            retry: Some(retry),
            ..self
        }
    }

    /// In the place of the message that has its id, if there is one.
    #[must_use]
    pub fn replace(self) -> Self {
        Self {
            replace: true,
            ..self
        }
    }

    /// Whether it can be taken, as far as it tells by itself. Submitting checks it, too.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field and what to do.
    pub fn check(&self) -> Result<(), Error> {
        name("topic", &self.topic)?;
        if self.replace && self.id.is_none() {
            let problem = "there is no id of a message to replace; give one";
            return Err(Error::invalid("replace", problem));
        }
        if let Some(key) = &self.idempotency_key {
            name("idempotency_key", key)?;
        }
        if self.payload.len() > MAX_PAYLOAD_BYTES {
            let problem = format!(
                "it has {} bytes, and {MAX_PAYLOAD_BYTES} are the most; \
                 store it elsewhere and send where it is",
                self.payload.len()
            );
            return Err(Error::invalid("payload", problem));
        }
        if let Some(content_type) = &self.content_type {
            name("content_type", content_type)?;
        }
        if let Some(retry) = &self.retry
            && retry.waits().len() > MAX_WAITS
        {
            let problem = format!(
                "it has {} waits; use at most {MAX_WAITS}",
                retry.waits().len()
            );
            return Err(Error::invalid("retry", problem));
        }
        if let Some(retry) = &self.retry
            && retry.waits().iter().any(|wait| *wait > LONGEST_WAIT)
        {
            let problem = "it has a wait of more than a year; use less";
            return Err(Error::invalid("retry", problem));
        }
        extras("metadata", self.metadata.iter())?;
        match &self.target {
            Target::Callback(callback) => {
                if callback.url.len() > 2048 {
                    let problem = "it is longer than 2048 bytes; shorten it";
                    return Err(Error::invalid("target.url", problem));
                }
                if !["http://", "https://"]
                    .iter()
                    .any(|scheme| callback.url.starts_with(scheme))
                {
                    let problem = "it does not begin with http:// or https://; write it in full";
                    return Err(Error::invalid("target.url", problem));
                }
                extras(
                    "target.headers",
                    callback.headers.iter().map(|(name, value)| (name, value)),
                )?;
                // It is kept in milliseconds, and none would mean the default.
                if callback
                    .timeout
                    .is_some_and(|timeout| timeout < SHORTEST_TIMEOUT)
                {
                    let problem = "it is less than a millisecond; give it time";
                    return Err(Error::invalid("target.timeout", problem));
                }
                Ok(())
            }
            Target::Bus(bus) => {
                name("target.topic", &bus.topic)?;
                name("target.aggregate_id", &bus.aggregate_id)?;
                name("target.event_type", &bus.event_type)
            }
        }
    }

    /// Two submissions with the same print ask for the same thing. The delay counts, not the moment at
    /// which it ends: a submission that is sent again asks for the same delay.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut fingerprint = Xxh3::new();
        // IMPORTANT: every part is behind its length, every list behind its count, and every choice behind its
        // tag, so that no two requests are written as the same bytes.
        let mut part = |bytes: &[u8]| {
            fingerprint.update(&(bytes.len() as u64).to_le_bytes());
            fingerprint.update(bytes);
        };
        part(self.topic.as_bytes());
        part(&self.payload);
        match &self.content_type {
            None => part(b"-"),
            Some(content_type) => {
                part(b"+");
                part(content_type.as_bytes());
            }
        }
        match self.when {
            When::After(delay) => {
                part(b"after");
                part(&delay.as_nanos().to_le_bytes());
            }
            When::At(due) => {
                part(b"at");
                part(&due.as_millis().to_le_bytes());
            }
        }
        match &self.target {
            Target::Callback(callback) => {
                part(b"callback");
                part(callback.url.as_bytes());
                part(callback.method.name().as_bytes());
                // A request that is sent again is traced anew, and asks for the same.
                let traced = |name: &str| {
                    let of_trace = ["traceparent", "tracestate"].iter();
                    of_trace
                        .into_iter()
                        .any(|one| one.eq_ignore_ascii_case(name))
                };
                let headers = callback.headers.iter().filter(|(name, _)| !traced(name));
                part(&headers.clone().count().to_le_bytes());
                for (name, value) in headers {
                    part(name.as_bytes());
                    part(value.as_bytes());
                }
                let timeout = callback.timeout.map(|timeout| timeout.as_nanos());
                part(&timeout.unwrap_or_default().to_le_bytes());
            }
            Target::Bus(bus) => {
                part(b"bus");
                part(bus.topic.as_bytes());
                part(bus.aggregate_id.as_bytes());
                part(bus.event_type.as_bytes());
            }
        }
        match &self.retry {
            None => part(b"-"),
            Some(schedule) => {
                part(&schedule.waits().len().to_le_bytes());
                for wait in schedule.waits() {
                    part(&wait.as_nanos().to_le_bytes());
                }
            }
        }
        for (name, value) in &self.metadata {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        fingerprint.digest()
    }
}

fn name(field: &'static str, name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let problem = format!(
            "it has {} bytes; use 1 to {MAX_NAME_BYTES} of them",
            name.len()
        );
        return Err(Error::invalid(field, problem));
    }
    if name.chars().any(char::is_control) {
        let problem = "it has control characters in it; leave them out";
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}

fn extras<'a>(
    field: &'static str,
    extras: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
) -> Result<(), Error> {
    if extras.len() > MAX_EXTRAS {
        let problem = format!("{} entries; use at most {MAX_EXTRAS}", extras.len());
        return Err(Error::invalid(field, problem));
    }
    let bytes: usize = extras.map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_EXTRAS_BYTES {
        let problem = format!("it has {bytes} bytes; use at most {MAX_EXTRAS_BYTES}");
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}

/// What a submission became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The id of the message.
    pub id: MessageId,
    /// When it is due.
    pub due: Timestamp,
    /// Whether this submission made it; otherwise an earlier one did.
    pub is_new: bool,
    /// The state of the message: one that an earlier submission made may have ended, and does not fire again then.
    /// `None`: it ended so long ago that it is forgotten.
    pub state: Option<StateName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission() -> Submission {
        let target = Target::callback("http://localhost/");
        Submission::new("t", When::After(Duration::from_secs(1)), target)
    }

    fn problem(submission: &Submission) -> String {
        submission.check().unwrap_err().to_string()
    }

    #[test]
    fn waits_and_time_outs_that_cannot_be_kept_are_refused() {
        let retry = |wait| submission().retry(Schedule::new([Duration::from_secs(1), wait]));
        assert!(problem(&retry(Duration::MAX)).contains("more than a year"));
        retry(Duration::from_hours(24)).check().unwrap();
        let with = |timeout| {
            let mut submission = submission();
            let Target::Callback(callback) = &mut submission.target else {
                unreachable!("it is one");
            };
            callback.timeout = Some(timeout);
            submission
        };
        assert!(problem(&with(Duration::from_micros(500))).contains("millisecond"));
        assert!(problem(&with(Duration::ZERO)).contains("millisecond"));
        with(Duration::from_millis(1)).check().unwrap();
    }

    #[test]
    fn the_field_is_named() {
        assert_eq!(submission().check(), Ok(()));
        let bad = Submission {
            topic: String::new(),
            ..submission()
        };
        assert!(problem(&bad).starts_with("topic: "));
        let bad = submission().payload(vec![0; MAX_PAYLOAD_BYTES + 1]);
        assert!(problem(&bad).starts_with("payload: "));
        let bad = submission().idempotency_key("a\nb");
        assert!(problem(&bad).starts_with("idempotency_key: "));
        let bad = Submission {
            target: Target::callback("ftp://x"),
            ..submission()
        };
        assert!(problem(&bad).starts_with("target.url: "));
        let bad = Submission {
            target: Target::bus("orders", "", "X"),
            ..submission()
        };
        assert!(problem(&bad).starts_with("target.aggregate_id: "));
        let bad = submission().retry(Schedule::new(vec![Duration::ZERO; 33]));
        assert!(problem(&bad).starts_with("retry: "));
    }

    #[test]
    fn another_request_has_another_print() {
        let fingerprint = submission().fingerprint();
        assert_eq!(submission().fingerprint(), fingerprint);
        assert_ne!(submission().payload("x").fingerprint(), fingerprint);
        let later = Submission {
            when: When::After(Duration::from_secs(2)),
            ..submission()
        };
        assert_ne!(later.fingerprint(), fingerprint);
        let hasty = submission().retry(Schedule::new([]));
        assert_ne!(hasty.fingerprint(), fingerprint);
        assert_ne!(
            hasty.fingerprint(),
            submission()
                .retry(Schedule::new([Duration::ZERO]))
                .fingerprint()
        );
        let pair = || ("a".to_owned(), "b".to_owned());
        let mut with_metadata = submission();
        with_metadata.metadata.extend([pair()]);
        let callback = |change: fn(&mut Callback)| {
            let mut submission = submission();
            if let Target::Callback(callback) = &mut submission.target {
                change(callback);
            }
            submission.fingerprint()
        };
        let with_header = callback(|callback| callback.headers.push(("a".into(), "b".into())));
        let with_limit = callback(|callback| callback.timeout = Some(Duration::from_secs(1)));
        assert_ne!(with_metadata.fingerprint(), with_header);
        assert!(![with_metadata.fingerprint(), with_header, with_limit].contains(&fingerprint));
        // Neither the id nor the key are what is asked for.
        assert_eq!(submission().idempotency_key("k").fingerprint(), fingerprint);
    }
}

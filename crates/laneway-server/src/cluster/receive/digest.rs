//! What identifies a request: ids made of keys, and digests of what was asked for.

use laneway_cluster::record::{Key, RequestDigest};
use laneway_delay::{Error, MessageId, Submission, Target, When};
use laneway_rpc::convert::{self, Parts};
use ring::digest::{Context, SHA256};

/// SHA-256 of parts, each behind its length, so that no two lists are written as the same bytes.
fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// The id of the message that an idempotency key stands for. As on one machine a key is the same in every topic.
pub(crate) fn id_of_key(key: &str) -> Result<MessageId, Error> {
    named("key", &[b"key", key.as_bytes()])
}

/// The id of a message of a request that a proxy may send to several servers.
pub(super) fn id_of_request(request: &str, index: usize) -> Result<MessageId, Error> {
    let index = (index as u64).to_le_bytes();
    named("request", &[b"request", request.as_bytes(), &index])
}

fn named(kind: &str, parts: &[&[u8]]) -> Result<MessageId, Error> {
    let hash = hash(parts);
    let mut number = [0; 16];
    number.copy_from_slice(&hash[..16]);
    MessageId::new(format!("{kind}-{:032x}", u128::from_be_bytes(number)))
}

/// What was asked for. The delay counts, not the moment at which it ends; traces do not, since a request that is sent again
/// is traced anew.
pub(super) fn of_submission(submission: &Submission) -> RequestDigest {
    let (kind, when) = match submission.when {
        When::After(delay) => (&b"after"[..], delay.as_nanos()),
        When::At(due) => (&b"at"[..], u128::from(due.as_millis())),
    };
    let mut parts = Parts::from(submission.clone());
    if let Target::Callback(callback) = &mut parts.target {
        let is_trace = |name: &str| {
            let mut of_trace = ["traceparent", "tracestate"].iter();
            of_trace.any(|one| one.eq_ignore_ascii_case(name))
        };
        callback.headers.retain(|(name, _)| !is_trace(name));
    }
    let body = convert::body(&parts);
    let topic = submission.topic.as_bytes();
    let digest = RequestDigest(hash(&[b"submit", topic, kind, &when.to_le_bytes(), &body]));
    // Of messages that were moved here from one machine only the fingerprint is known.
    digest.with_fingerprint(submission.fingerprint())
}

/// A command, as a key has to know it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) id: &'a MessageId,
    pub(super) what: &'a str,
    pub(super) by: u128,
    /// The request of a proxy that may send it to several servers, and the place of the command in it.
    pub(super) request: Option<(&'a str, usize)>,
}

impl Asked<'_> {
    /// A key for a command that must not be done twice, and what was asked for. The number is that of the question: after a
    /// no, the same is asked anew.
    pub(super) fn key(&self, number: u64) -> (Key, RequestDigest) {
        let id = self.id.as_str().as_bytes();
        let hashed = match self.request {
            Some((request, index)) => {
                let (index, number) = ((index as u64).to_le_bytes(), number.to_le_bytes());
                hash(&[b"command of", request.as_bytes(), &index, &number, id])
            }
            None => hash(&[b"command", MessageId::unique().as_str().as_bytes(), id]),
        };
        let mut key = [0; 16];
        key.copy_from_slice(&hashed[..16]);
        let digest = hash(&[id, self.what.as_bytes(), &self.by.to_le_bytes()]);
        (Key(key), RequestDigest(digest))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use laneway_delay::Timestamp;

    use super::*;

    fn submission(when: When) -> Submission {
        Submission::new("t", when, Target::callback("http://localhost/")).payload("{}")
    }

    #[test]
    fn the_digest_is_that_of_what_was_asked_for() {
        let after = |seconds| submission(When::After(Duration::from_secs(seconds)));
        let digest = of_submission(&after(5));
        assert_eq!(digest, of_submission(&after(5)));
        assert_ne!(digest, of_submission(&after(6)));
        assert_ne!(digest, of_submission(&after(5).payload("[]")));
        let at = submission(When::At(Timestamp::from_millis(5_000_000_000)));
        assert_ne!(digest, of_submission(&at));
        let keyed = after(5).idempotency_key("k");
        assert_eq!(digest, of_submission(&keyed));
        let mut traced = after(5);
        if let Target::Callback(callback) = &mut traced.target {
            let header = ("Traceparent".to_owned(), "00-1".to_owned());
            callback.headers.push(header);
        }
        assert_eq!(digest, of_submission(&traced));
    }

    #[test]
    fn ids_of_keys_are_ids_and_differ() {
        let one = id_of_key("order 4711/ä").expect("an id");
        assert_eq!(one, id_of_key("order 4711/ä").expect("an id"));
        for key in ["order 4711/", "rder 4711/ä", "order 4711/a"] {
            assert_ne!(one, id_of_key(key).expect("an id"));
        }
        assert_ne!(id_of_request("r", 0), id_of_request("r", 1));
    }

    #[test]
    fn keys_of_commands_are_drawn_or_those_of_a_request_and_their_digests_are_not() {
        let id = &MessageId::unique();
        let asked = |by, request| Asked {
            id,
            what: "extend by",
            by,
            request,
        };
        let (one, digest) = asked(7, None).key(0);
        let (other, same) = asked(7, None).key(0);
        assert_ne!(one, other);
        assert_eq!(digest, same);
        assert_ne!(digest, asked(8, None).key(0).1);
        let of_request = asked(7, Some(("r", 0)));
        assert_eq!(of_request.key(0), asked(7, Some(("r", 0))).key(0));
        assert_ne!(of_request.key(0).0, of_request.key(1).0);
        assert_ne!(of_request.key(0).0, asked(7, Some(("r", 1))).key(0).0);
        assert_ne!(of_request.key(0).0, asked(7, Some(("s", 0))).key(0).0);
    }
}

//! Standard Webhooks, version 1: how a receiver knows that a callback is from its server.
//!
//! Three headers go with every signed callback: `webhook-id`, `webhook-timestamp` (seconds since
//! the Unix epoch, of this attempt) and `webhook-signature`. The signature is `v1,` and the base64
//! of the HMAC-SHA256 over `id.timestamp.body`. With several secrets there are several signatures,
//! separated by spaces, so that a secret can be replaced while receivers still know the old one.
//!
//! # What is signed is unambiguous
//!
//! The parts are joined by dots, so an id with a dot in it could be read as an id, a time and the beginning of a body. Ids
//! come from clients that submit. So the id is signed and sent with each `.` written as `~` ([`signed_id`]), a character
//! that no id has.
//!
//! # Whose secret
//!
//! A receiver that knows a secret can sign with it. [`Secrets`] has some for single hosts, so that a receiver
//! cannot forge callbacks to another one, and so that no client gets a signature for a host by having the same body sent
//! to one of their own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// The name of the header with the id.
pub const ID: &str = "webhook-id";
/// The name of the header with the time of the attempt.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The name of the header with the signatures.
pub const SIGNATURE: &str = "webhook-signature";

const PREFIX: &str = "whsec_";
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that callbacks are signed with: `whsec_` and 24 to 64 random bytes in base64.
///
/// ```
/// use laneway_delay::callback::{Secret, signature};
///
/// let secret: Secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?;
/// let signature = signature::sign(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
/// assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
/// # Ok::<(), signature::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Text that is not a secret. What it says never contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The prefix is missing.
    #[error(
        "a secret starts with whsec_: make one with `echo whsec_$(head -c 32 /dev/urandom | base64)`"
    )]
    Prefix,
    /// What follows the prefix is not base64.
    #[error(
        "what follows whsec_ is not base64: make a new one with `echo whsec_$(head -c 32 /dev/urandom | base64)`"
    )]
    Base64,
    /// Too short to be safe, or too long to be one.
    #[error("a secret has 24 to 64 bytes before base64, and this one has {0}")]
    Length(usize),
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?;
        if !BYTES.contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// The secrets of a client: those of single hosts, and those of all others.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    others: Vec<Secret>,
    by_host: BTreeMap<String, Vec<Secret>>,
}

impl From<Vec<Secret>> for Secrets {
    fn from(others: Vec<Secret>) -> Self {
        Self {
            others,
            by_host: BTreeMap::new(),
        }
    }
}

impl Secrets {
    /// Callbacks to this host are signed with these secrets and no others. A host is a name or an address, with or
    /// without a port: `hooks.example.com`, `10.0.0.7:8080`, `[2001:db8::1]`.
    #[must_use]
    pub fn for_host(mut self, host: impl Into<String>, secrets: Vec<Secret>) -> Self {
        self.by_host
            .insert(host.into().to_ascii_lowercase(), secrets);
        self
    }

    /// Whether nothing is signed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.others.is_empty() && self.by_host.is_empty()
    }

    /// What callbacks to `HOST:PORT` are signed with.
    #[must_use]
    pub fn of(&self, host_and_port: &str) -> &[Secret] {
        let host = host_and_port.rsplit_once(':').map_or("", |(host, _)| host);
        let own = self.by_host.get(host_and_port);
        let own = own.or_else(|| self.by_host.get(host));
        own.unwrap_or(&self.others)
    }
}

/// The id as it is signed and sent: without dots, and another one for each id.
#[must_use]
pub fn signed_id(id: &str) -> Cow<'_, str> {
    if id.contains('.') {
        Cow::Owned(id.replace('.', "~"))
    } else {
        Cow::Borrowed(id)
    }
}

/// Whether one of the signatures in the header [`SIGNATURE`] was made with one of the secrets. How old the
/// timestamp may be is up to the receiver.
///
/// ```
/// use laneway_delay::callback::{Secret, signature};
///
/// let secrets: [Secret; 1] = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?];
/// let header = signature::sign(&secrets, "order-1", 1_614_265_330, b"{}");
/// assert!(signature::verify(&secrets, "order-1", 1_614_265_330, b"{}", &header));
/// assert!(!signature::verify(&secrets, "order-2", 1_614_265_330, b"{}", &header));
/// # Ok::<(), signature::SecretError>(())
/// ```
#[must_use]
pub fn verify(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8], header: &str) -> bool {
    if id.contains('.') {
        return false;
    }
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let signatures = header.split(' ').filter_map(|one| one.strip_prefix("v1,"));
    let signatures: Vec<Vec<u8>> = signatures
        .filter_map(|one| STANDARD.decode(one).ok())
        .collect();
    secrets.iter().any(|Secret(key)| {
        signatures
            .iter()
            .any(|signature| hmac::verify(key, &signed, signature).is_ok())
    })
}

/// The value of the header [`SIGNATURE`]: one signature for each secret.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures = secrets.iter().map(|Secret(key)| {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn secret(text: &str) -> Secret {
        text.parse().expect(text)
    }

    /// Computed with Python's `hmac` and `base64`.
    #[test]
    fn signatures_are_those_of_another_implementation() {
        let sign = |id, time, body| sign(&[secret(SECOND)], id, time, body);
        assert_eq!(
            sign("order-4711", 1_794_787_200, b""),
            "v1,XU4pGaUnn+LmNLYk55jXfeFJdL4RujEJc3TgPjHqoJk="
        );
        assert_eq!(
            sign("order-4711", 1_794_787_200, &[233, 0, 255]),
            "v1,onSxgD2XpuREkkhJIpBlU8C/PLFdDYjMCa+wp/oMFW4="
        );
    }

    #[test]
    fn an_id_with_dots_is_signed_without_them() {
        assert_eq!(signed_id("order-4711"), "order-4711");
        assert_eq!(signed_id("victim.1826382223"), "victim~1826382223");
        // Sent as it is, it would be the signature of another id, another time and another body.
        let signature = sign(&[secret(FIRST)], "victim.1826382223", 5, b"pay");
        assert!(!verify(
            &[secret(FIRST)],
            "victim.1826382223",
            5,
            b"pay",
            &signature
        ));
        assert!(verify(
            &[secret(FIRST)],
            "victim",
            1_826_382_223,
            b"5.pay",
            &signature
        ));
    }

    #[test]
    fn a_host_with_secrets_of_its_own_has_no_others() {
        let secrets = Secrets::from(vec![secret(FIRST)])
            .for_host("A.example", vec![secret(SECOND)])
            .for_host("b.example:8443", vec![]);
        let sign = |host: &str| sign(secrets.of(host), "a", 1, b"b");
        let with = |text: &str| super::sign(&[secret(text)], "a", 1, b"b");
        assert_eq!(sign("a.example:443"), with(SECOND));
        assert_eq!(sign("b.example:443"), with(FIRST));
        assert_eq!(sign("b.example:8443"), "");
        assert_eq!(sign("c.example:443"), with(FIRST));
        assert_eq!(sign("[::1]:443"), with(FIRST));
    }

    #[test]
    fn every_secret_signs() {
        let both = sign(&[secret(FIRST), secret(SECOND)], "a", 1, b"b");
        let one = |text| sign(&[secret(text)], "a", 1, b"b");
        assert_eq!(both, format!("{} {}", one(FIRST), one(SECOND)));
    }

    #[test]
    fn what_is_not_a_secret_is_refused_and_never_shown() {
        for (text, error) in [
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::Prefix),
            ("", SecretError::Prefix),
            ("whsec_%%%", SecretError::Base64),
            ("whsec_AAECAwQ=", SecretError::Length(5)),
        ] {
            let refused = text.parse::<Secret>().expect_err(text);
            assert_eq!(refused, error);
        }
        assert_eq!(format!("{:?}", secret(FIRST)), "Secret(…)");
    }
}

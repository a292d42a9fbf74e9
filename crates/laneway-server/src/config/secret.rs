//! Addresses of buses and servers, to be shown: without what is secret in them.

/// What stands in place of a secret.
const HIDDEN: &str = "***";

/// The settings of an address whose values may be shown. All others may be secrets, or be meant as such.
const SHOWN: &[&str] = &[
    "ca",
    "cert",
    "compression",
    "domain",
    "duplicates_ms",
    "instance",
    "key",
    "lease_before_ms",
    "lease_ms",
    "linger_ms",
    "max_message",
    "min_in_sync",
    "namespace",
    "prefix",
    "protocol",
    "replicas",
    "replication",
    "sasl",
    "session_ms",
    "tls",
];

/// An address, taken apart as the brokers do it: a password may have any character but `?`.
struct Parts<'a> {
    /// With what follows it: `nats://`.
    scheme: &'a str,
    user: Option<&'a str>,
    hosts: &'a str,
    settings: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// `None`: the name of a directory, or `memory:`.
    fn of(address: &'a str) -> Option<Self> {
        let begin = match (address.split_once("://"), address.split_once(':')) {
            (_, Some(("file" | "memory", _))) => return None,
            (Some((scheme, _)), _) => scheme.len() + 3,
            // A mistake. What looks like a user is hidden all the same.
            (None, word) => word.map_or(0, |(word, _)| word.len() + 1),
        };
        let (scheme, rest) = address.split_at(begin);
        // Brokers refuse a `?` in a password. It is told by the `@` that follows where a setting should have its name.
        let is_end = |at: usize| {
            let name = rest[at..].split(['=', '&']).next();
            !name.is_some_and(|name| name.contains('@'))
        };
        let mut ends = rest.match_indices('?').map(|(at, _)| at);
        let end = ends.find(|at| is_end(*at));
        let (authority, settings) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        Some(Self {
            scheme,
            user,
            hosts,
            settings,
        })
    }
}

/// An address without users, passwords and tokens in it, to be shown.
pub(crate) fn without_secrets(address: &str) -> String {
    let Some(parts) = Parts::of(address) else {
        return address.to_owned();
    };
    let mut shown = parts.scheme.to_owned();
    if parts.user.is_some() {
        shown.push_str(HIDDEN);
        shown.push('@');
    }
    shown.push_str(parts.hosts);
    for (number, setting) in parts
        .settings
        .into_iter()
        .flat_map(|s| s.split('&'))
        .enumerate()
    {
        shown.push(if number == 0 { '?' } else { '&' });
        match setting.split_once('=') {
            Some((key, _)) if !SHOWN.contains(&key) => {
                shown.push_str(key);
                shown.push('=');
                shown.push_str(HIDDEN);
            }
            _ => shown.push_str(setting),
        }
    }
    shown
}

/// What is said about an address, without what is secret in it.
pub(crate) fn without_secrets_of(address: &str, said: &str) -> String {
    let Some(parts) = Parts::of(address) else {
        return said.to_owned();
    };
    if parts.user.is_some_and(|user| user.contains('?')) {
        // Parts of the password were taken for something else.
        return "there is a `?` before an `@`: write it as `%3F` in a password".to_owned();
    }
    let mut said = said.replace(address, &without_secrets(address));
    let settings = parts
        .settings
        .into_iter()
        .flat_map(|settings| settings.split('&'));
    let hidden = settings.filter_map(|setting| match setting.split_once('=') {
        Some((key, value)) if !SHOWN.contains(&key) => Some(value),
        _ => None,
    });
    // Words and letters that happen to be in the sentence stay.
    for secret in hidden.chain(parts.user).filter(|secret| secret.len() > 3) {
        said = said.replace(secret, HIDDEN);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_tokens_are_not_shown() {
        for (address, shown) in [
            (
                "nats://svc:hunter2@127.0.0.1:4222",
                "nats://***@127.0.0.1:4222",
            ),
            (
                "nats://token@a:1,b:2?namespace=x",
                "nats://***@a:1,b:2?namespace=x",
            ),
            (
                "kafka://u:p@ss@a:9092?sasl=plain",
                "kafka://***@a:9092?sasl=plain",
            ),
            ("nats://svc:hun/ter2@a:1", "nats://***@a:1"),
            ("nats://svc:hun#ter2@a:1/", "nats://***@a:1/"),
            (
                "nats://svc:hun?ter2@a:1?tls=true",
                "nats://***@a:1?tls=true",
            ),
            (
                "nats://a:1?token=s3cret&replicas=3",
                "nats://a:1?token=***&replicas=3",
            ),
            (
                "nats://a:1?replicas=3&Token=s3cret",
                "nats://a:1?replicas=3&Token=***",
            ),
            (
                "nats://a:1?nkey=SUAB&creds=x",
                "nats://a:1?nkey=***&creds=***",
            ),
            ("nats://a:1?namespace=a@b", "nats://a:1?namespace=a@b"),
            ("kafka:u:p@a:9092", "kafka:***@a:9092"),
            (
                "rediss+cluster://u:p@ss@a:1/2?ca=c.pem",
                "rediss+cluster://***@a:1/2?ca=c.pem",
            ),
            ("file:a@b", "file:a@b"),
            ("memory:", "memory:"),
        ] {
            assert_eq!(without_secrets(address), shown);
        }
    }

    #[test]
    fn what_is_said_about_an_address_has_no_secret_in_it() {
        for (address, said) in [
            ("nats://u:s3cret@a", "cannot reach nats://u:s3cret@a"),
            ("kafka:u:s3cret@a", "kafka: is followed by u:s3cret@a"),
            ("nats://a?token=s3cret", "token s3cret is refused"),
            ("nats://u:x?s3cret@a", "there is no setting s3cret@a"),
        ] {
            let shown = without_secrets_of(address, said);
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}

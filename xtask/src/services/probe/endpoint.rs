use anyhow::{Context, bail};

/// An address as users write it: `scheme://user:password@host:port/rest`, most of it optional.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) scheme: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Endpoint {
    pub(super) fn parse(text: &str, default_port: u16) -> anyhow::Result<Self> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, "")))
        {
            Some((user, password)) => (decoded(user), decoded(password)),
            None => (None, None),
        };
        // An IPv6 address has colons of its own, and brackets around them.
        let (host, port) = match place
            .strip_prefix('[')
            .and_then(|place| place.split_once(']'))
        {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match place.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        if host.is_empty() {
            bail!("no host; expected host:port");
        }
        let port = match port {
            Some(port) => port
                .parse()
                .with_context(|| format!("the port is {port:?}"))?,
            None => default_port,
        };
        Ok(Self {
            scheme,
            user,
            password,
            host: host.to_owned(),
            port,
        })
    }
}

/// An address for messages and tables.
pub(crate) fn without_password(text: &str) -> String {
    match text.split_once("://").zip(text.rsplit_once('@')) {
        Some(((scheme, _), (_, place))) => format!("{scheme}://…@{place}"),
        None => text.to_owned(),
    }
}

/// Undoes %-encoding; nothing stays nothing.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'%')
            .then(|| after.first_chunk::<2>())
            .flatten()
            .and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        Endpoint::parse(text, 4222).unwrap()
    }

    #[test]
    fn host_and_port_are_enough() {
        let it = endpoint("localhost:1234");
        assert_eq!(
            (it.host.as_str(), it.port, it.scheme),
            ("localhost", 1234, None)
        );
    }

    #[test]
    fn the_port_may_be_left_out() {
        assert_eq!(endpoint("nats://example").port, 4222);
        assert_eq!(endpoint("[::1]").port, 4222);
    }

    #[test]
    fn login_database_and_options_are_told_from_the_host() {
        let it = endpoint("redis://me:p%40ss@host:6379/3?protocol=3");
        assert_eq!(it.scheme.as_deref(), Some("redis"));
        assert_eq!(it.user.as_deref(), Some("me"));
        assert_eq!(it.password.as_deref(), Some("p@ss"));
        assert_eq!((it.host.as_str(), it.port), ("host", 6379));
    }

    #[test]
    fn a_password_needs_no_user() {
        let it = endpoint("redis://:secret@host");
        assert_eq!((it.user, it.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn an_ipv6_address_keeps_its_colons() {
        let it = endpoint("nats://[::1]:99");
        assert_eq!((it.host.as_str(), it.port), ("::1", 99));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Endpoint::parse("", 1).is_err());
        assert!(Endpoint::parse("nats://", 1).is_err());
        assert!(Endpoint::parse("host:port", 1).is_err());
    }

    #[test]
    fn a_stray_percent_sign_is_kept() {
        assert_eq!(
            endpoint("redis://:100%@host").password.as_deref(),
            Some("100%")
        );
        assert_eq!(
            endpoint("redis://:%é1@host").password.as_deref(),
            Some("%é1")
        );
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(
            without_password("redis://:secret@host:1"),
            "redis://…@host:1"
        );
        assert_eq!(without_password("host:1"), "host:1");
    }
}

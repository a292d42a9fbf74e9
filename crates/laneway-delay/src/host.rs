//! The one rule for which callbacks go to the same host.

use std::borrow::Cow;

/// Host and port of an absolute URL: what shares slots in the engine, and a circuit, kept connections and secrets in
/// the callback client.
///
/// Exact for a URL in normal form, which [`Deliver::check`](crate::Deliver::check) of the callback client brings it
/// into. Of any other text it makes something that is at least the same each time.
pub(crate) fn host_and_port(url: &str) -> Cow<'_, str> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let after_address = host.rsplit(']').next().unwrap_or(host);
    let host = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    };
    if after_address.contains(':') {
        host
    } else if scheme.eq_ignore_ascii_case("https") {
        Cow::Owned(format!("{host}:443"))
    } else {
        Cow::Owned(format!("{host}:80"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_however_its_url_goes_on() {
        for (url, host) in [
            ("http://a.example/x?y", "a.example:80"),
            ("http://A.example?y", "a.example:80"),
            ("https://a.example#z", "a.example:443"),
            ("https://u:p@a.example:8443/x", "a.example:8443"),
            ("http://[::1]/x", "[::1]:80"),
            ("http://[::1]:9000/x", "[::1]:9000"),
        ] {
            assert_eq!(host_and_port(url), host, "{url}");
        }
    }
}

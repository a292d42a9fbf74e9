//! Which requests are looked at, before any route is: not those that a page of another site makes a browser send.
//!
//! There is no authentication yet, so a request is as good as the place it was made in. Three ways lead from
//! a foreign page to this server, and each has a check of its own:
//!
//! | way | what the browser says | check |
//! |---|---|---|
//! | a name that resolves to this machine (DNS rebinding) | `Host` is that name | `Host` is an address, `localhost`, or one of `serve.hosts` |
//! | a script or a form that sends across origins | `Origin` is that page | `Origin` is this server, or one of `serve.hosts` |
//! | what carries no `Origin`: images, scripts, frames | `Sec-Fetch-Site`, on secure and loopback addresses | only a link that was followed |
//!
//! An address as `Host` is always fine: nobody can make a page whose origin is an address that belongs to
//! somebody else. Programs send neither `Origin` nor `Sec-Fetch-Site`, and browsers do not let pages change
//! them. Browsers too old for them still cannot send JSON across origins without asking, so what takes another
//! type, or no body, refuses whatever looks like a browser ([`simple_request`]).

use std::net::IpAddr;
use std::str::FromStr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{App, Problem};
use crate::config::HostNames;

/// Lets through what does not come from a page of another site.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    match check(&request, &app.hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check<B>(request: &axum::http::Request<B>, names: &HostNames) -> Result<(), Problem> {
    // A request line may have an authority of its own, which counts more than the header.
    let of_the_line = request.uri().authority().map(Authority::as_str);
    let hosts = request.headers().get_all(header::HOST).iter();
    let hosts = hosts.map(|host| host.to_str().unwrap_or(""));
    let hosts: Vec<&str> = of_the_line.into_iter().chain(hosts).collect();
    // Without any it is no browser, but HTTP/1.0, as health checks of load balancers speak it.
    if let Some(foreign) = hosts.iter().find(|host| !is_ours(host, names)) {
        return Err(Problem::unknown_host(foreign));
    }
    if is_cross_origin(request.headers(), &hosts, names) || is_cross_site(request) {
        return Err(Problem::cross_site());
    }
    Ok(())
}

/// Whether a `Host` names this server.
fn is_ours(host: &str, names: &HostNames) -> bool {
    match host_name(host) {
        Some(name) => {
            is_address(&name)
                || name == "localhost"
                || name.ends_with(".localhost")
                || names.contains(&name)
        }
        None => false,
    }
}

/// The name in `NAME:PORT`, in the one form that is compared.
fn host_name(authority: &str) -> Option<String> {
    let authority = Authority::from_str(authority).ok()?;
    if authority.as_str().contains('@') {
        return None;
    }
    let name = authority.host();
    let name = name.strip_suffix('.').unwrap_or(name);
    Some(name.to_ascii_lowercase())
}

fn is_address(name: &str) -> bool {
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

/// Whether a page of another origin sent it: another name, or another port.
fn is_cross_origin(headers: &HeaderMap, hosts: &[&str], names: &HostNames) -> bool {
    headers.get_all(header::ORIGIN).iter().any(|origin| {
        let origin = origin.to_str().unwrap_or("");
        // `null` is a page without an origin, such as a file or a sandboxed frame.
        let Some((_, authority)) = origin.split_once("://") else {
            return true;
        };
        let same = !hosts.is_empty()
            && hosts
                .iter()
                .all(|host| host.eq_ignore_ascii_case(authority));
        // Behind a proxy that rewrites `Host`, the name that people type is not in it.
        let is_configured = host_name(authority).is_some_and(|name| names.contains(&name));
        !same && !is_configured
    })
}

/// Whether a browser says that another site is behind it, and it is not just a link that was followed.
fn is_cross_site<B>(request: &axum::http::Request<B>) -> bool {
    let said = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    match said("sec-fetch-site") {
        None | Some(b"same-origin" | b"none") => false,
        Some(_) => {
            let link = said("sec-fetch-mode") == Some(b"navigate")
                && said("sec-fetch-dest") == Some(b"document");
            !(link && request.method().is_safe())
        }
    }
}

/// Refuses what an old browser could have sent across origins without asking: a request that is not of the type
/// JSON, and has a sign of a browser on it.
pub(super) fn simple_request(headers: &HeaderMap) -> Result<(), Problem> {
    let signs = [
        "origin",
        "referer",
        "cookie",
        "sec-fetch-site",
        "sec-fetch-mode",
    ];
    if super::body::is_json(headers) || !signs.iter().any(|sign| headers.contains_key(*sign)) {
        Ok(())
    } else {
        Err(Problem::not_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HostNames {
        HostNames::parse("delay.example").expect("names")
    }

    fn verdict(method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = axum::http::Request::builder()
            .method(method)
            .uri("/v1/messages");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        match check(&request, &names()) {
            Ok(()) => 200,
            Err(problem) => problem.status().as_u16(),
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name_of_this_machine_or_one_that_was_configured() {
        for host in [
            "127.0.0.1:7070",
            "10.0.0.5",
            "[::1]:7070",
            "localhost",
            "LOCALHOST.:7070",
            "a.localhost:1",
            "delay.example:7070",
            "Delay.Example.",
        ] {
            assert_eq!(verdict("GET", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example:7070",
            "notlocalhost",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "delay.example.evil.example",
            "x@127.0.0.1",
            "2130706433",
            "",
            "a b",
        ] {
            assert_eq!(verdict("GET", &[("host", host)]), 421, "{host}");
        }
        assert_eq!(verdict("GET", &[]), 200, "HTTP/1.0");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(verdict("GET", &two), 421);
    }

    #[test]
    fn the_authority_of_the_request_line_counts_too() {
        let request = axum::http::Request::builder()
            .uri("http://evil.example/v1/messages")
            .header("host", "localhost")
            .body(())
            .expect("a request");
        assert!(check(&request, &names()).is_err());
    }

    #[test]
    fn an_origin_is_this_server_or_a_name_that_was_configured() {
        let host = ("host", "127.0.0.1:7070");
        for origin in ["http://127.0.0.1:7070", "https://delay.example"] {
            for method in ["GET", "POST"] {
                assert_eq!(
                    verdict(method, &[host, ("origin", origin)]),
                    200,
                    "{origin}"
                );
            }
        }
        for origin in [
            "http://evil.example",
            // Another server of the same machine is another site.
            "http://127.0.0.1:3000",
            "http://localhost:7070",
            "http://127.0.0.1",
            "null",
            "",
        ] {
            for method in ["GET", "POST", "DELETE", "OPTIONS"] {
                assert_eq!(
                    verdict(method, &[host, ("origin", origin)]),
                    403,
                    "{origin}"
                );
            }
        }
    }

    #[test]
    fn another_site_can_link_here_and_no_more() {
        let host = ("host", "localhost");
        let link = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        for site in ["cross-site", "same-site"] {
            let site = ("sec-fetch-site", site);
            assert_eq!(verdict("GET", &[host, site, link[0], link[1]]), 200);
            assert_eq!(verdict("POST", &[host, site, link[0], link[1]]), 403);
            assert_eq!(verdict("GET", &[host, site]), 403);
            let script = [("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "script")];
            assert_eq!(verdict("GET", &[host, site, script[0], script[1]]), 403);
        }
        for site in ["same-origin", "none"] {
            assert_eq!(verdict("POST", &[host, ("sec-fetch-site", site)]), 200);
        }
    }

    #[test]
    fn what_is_not_json_must_not_look_like_a_browser() {
        let headers = |list: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in list {
                headers.insert(*name, value.parse().expect("a value"));
            }
            simple_request(&headers).is_ok()
        };
        assert!(headers(&[]));
        assert!(headers(&[("content-type", "text/plain")]));
        assert!(headers(&[
            ("content-type", "application/json"),
            ("referer", "x")
        ]));
        assert!(!headers(&[
            ("content-type", "text/plain"),
            ("referer", "x")
        ]));
        assert!(!headers(&[("cookie", "a=b")]));
    }
}

//! The page that a person sees who opens the address in a browser.

use axum::http::header;
use axum::response::{Html, IntoResponse};

const PAGE: &str = concat!(
    r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Laneway</title>
<h1>Laneway "#,
    env!("CARGO_PKG_VERSION"),
    r#"</h1>
<p>This server answers about itself:</p>
<ul>
<li><a href="/healthz">/healthz</a>: is it alive</li>
<li><a href="/readyz">/readyz</a>: does it take requests</li>
<li><a href="/version">/version</a>: what it is and how it was built</li>
<li><a href="/metrics">/metrics</a>: metrics for Prometheus</li>
</ul>
<p>It takes delayed messages: <code>POST /v1/messages</code>, and
<a href="/v1/messages">/v1/messages</a> lists those that wait, <a href="/v1/dead">/v1/dead</a> those that
were given up. <code>laneway delay --help</code> does the same from the command line.</p>
</html>
"#
);

pub(super) async fn page() -> impl IntoResponse {
    // Nothing on this page needs a script, a frame or another host.
    let policy = [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (policy, Html(PAGE))
}

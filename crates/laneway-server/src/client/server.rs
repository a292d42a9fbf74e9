//! One request to a server, and what went wrong with it.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::Url;

/// Longer than the server takes for anything.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Which server, and how its answers are shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The address of the server.
    #[arg(
        long,
        value_name = "URL",
        env = "LANEWAY_SERVER",
        default_value = "http://127.0.0.1:7070"
    )]
    pub(crate) server: String,

    /// Print the answer of the server as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) struct Server {
    base: Url,
    http: reqwest::Client,
}

impl Connection {
    pub(super) fn open(&self) -> anyhow::Result<Server> {
        let base = Url::parse(&self.server)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let base = base.with_context(|| {
            let server = &self.server;
            format!("--server is `{server}`: give an address such as http://127.0.0.1:7070")
        })?;
        // Somebody else may have chosen one before; that one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .context("cannot set up an HTTP client")?;
        Ok(Server { base, http })
    }
}

impl Server {
    /// The address of a path. Its parts may come from the command line, so they are escaped.
    pub(super) fn url(&self, parts: &[&str]) -> anyhow::Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("--server is not an address that paths can be added to"))?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    pub(super) async fn send(
        &self,
        method: Method,
        url: Url,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let mut request = self.http.request(method, url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            let json = serde_json::to_vec(body).context("cannot write the request")?;
            request = request
                .header("content-type", "application/json")
                .body(json);
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let text = response.bytes().await.context("the answer broke off")?;
        let answer: Option<Value> = serde_json::from_slice(&text).ok();
        match answer {
            Some(answer) if status.is_success() => Ok(answer),
            Some(problem) => bail!(refusal(status, &problem)),
            None => bail!(
                "the server answered {status} and no JSON: is {} a laneway?",
                self.base
            ),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let base = &self.base;
        anyhow!(
            "cannot reach a server at {base}: {cause}\n  \
             start one with `laneway serve`, or say where it is with --server or LANEWAY_SERVER"
        )
    }
}

/// What a problem says, in one line.
fn refusal(status: StatusCode, problem: &Value) -> String {
    let member = |name: &str| problem.get(name).and_then(Value::as_str);
    let detail = member("detail").unwrap_or("it does not say why");
    let field = member("field").map(|field| format!("{field}: "));
    format!(
        "{}{detail} ({})",
        field.unwrap_or_default(),
        status.as_u16()
    )
}

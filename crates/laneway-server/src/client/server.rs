//! One request to a server, and what went wrong with it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use reqwest::Method;
use serde_json::Value;
use url::Url;

use super::failed::Failed;
use crate::config::{Inputs, Overrides};

/// Longer than the server takes for anything.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Which server, and how its answers are shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The address of the server. Without it, the one that `serve` would listen on: that of the configuration
    /// file, or `http://127.0.0.1:7070`.
    #[arg(long, value_name = "URL", env = "LANEWAY_SERVER")]
    pub(crate) server: Option<String>,

    /// Print the answer of the server as it came, and errors as JSON too.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing if all goes well.
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

pub(super) struct Server {
    base: Url,
    http: reqwest::Client,
}

/// What a server answered.
pub(super) struct Answer {
    /// As it came: what is in it may not be parsed and written again without damage.
    pub(super) text: String,
    pub(super) value: Value,
}

impl Connection {
    pub(super) fn open(&self, config: Option<&Path>) -> anyhow::Result<Server> {
        let server = match &self.server {
            Some(server) => server.clone(),
            None => configured(config)?,
        };
        let base = Url::parse(&server)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let base = base.with_context(|| {
            let server = crate::config::secret::without_secrets(&server);
            format!("--server is `{server}`: give an address such as http://127.0.0.1:7070")
        })?;
        // Another provider may be installed already; that one is as good.
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

/// Where `serve` would listen with this configuration.
fn configured(config: Option<&Path>) -> anyhow::Result<String> {
    let inputs = Inputs::gather(config.map(Path::to_owned), Overrides::default())?;
    let mut listen = inputs.resolve()?.config.serve.listen;
    if listen.port() == 0 {
        bail!(
            "serve.listen takes any free port: say which one it got with --server or LANEWAY_SERVER"
        );
    }
    if listen.ip().is_unspecified() {
        listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    Ok(format!("http://{listen}"))
}

impl Server {
    /// The address of a path. Its parts may come from the command line, so they are escaped.
    pub(super) fn url(&self, parts: &[&str]) -> anyhow::Result<Url> {
        if parts.iter().any(|part| matches!(*part, "." | "..")) {
            bail!("`.` and `..` are no ids: no message can have them");
        }
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
        body: Option<String>,
    ) -> anyhow::Result<Answer> {
        let reads_only = method == Method::GET;
        let mut request = self.http.request(method, url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(json) = body {
            request = request
                .header("content-type", "application/json")
                .body(json);
        }
        let no_answer = |error: &reqwest::Error| {
            // What only reads can be asked again; what was never sent did not happen.
            if reads_only || error.is_connect() {
                self.unreachable(error)
            } else {
                self.outcome_unknown(&cause(error))
            }
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() => return Err(error).context("cannot send this"),
            Err(error) => return Err(no_answer(&error).into()),
        };
        let status = response.status();
        let text = response.text().await.map_err(|error| no_answer(&error))?;
        match serde_json::from_str(&text) {
            Ok(value) if status.is_success() => Ok(Answer { text, value }),
            Ok(problem) => Err(Failed::refused(status, text, &problem).into()),
            // A proxy that lost the server.
            Err(_) if !reads_only && matches!(status.as_u16(), 502 | 504) => {
                Err(self.outcome_unknown(&status.to_string()).into())
            }
            Err(_) => bail!(
                "the server answered {status} and no JSON: is {} a laneway?",
                self.shown()
            ),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failed {
        Failed::unreachable(format!(
            "cannot reach a server at {}: {}\n  \
             start one with `laneway serve`, or say where it is with --server or LANEWAY_SERVER",
            self.shown(),
            cause(error)
        ))
    }

    fn outcome_unknown(&self, cause: &str) -> Failed {
        Failed::outcome_unknown(format!(
            "the server at {} took the request and gave no answer: {cause}; it may have happened all the same\n  \
             look with `laneway delay get ID`, or send it again with the same id",
            self.shown()
        ))
    }

    fn shown(&self) -> String {
        crate::config::secret::without_secrets(self.base.as_str())
    }
}

/// What is at the bottom of it.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

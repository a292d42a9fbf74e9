//! Signed callbacks, and the receiver that checks them: `laneway listen`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::harness::{PATIENCE, Server, empty_directory, laneway};
use crate::receiver::Receivers;
use laneway_delay::callback::{Secret, signature};
use serde_json::json;
use tempfile::TempDir;

const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SECOND: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn directory_with_secrets() -> Arc<TempDir> {
    let directory = Arc::new(empty_directory());
    fs::write(directory.path().join("first"), FIRST).expect("written");
    fs::write(directory.path().join("second"), SECOND).expect("written");
    directory
}

/// A `laneway listen` that is killed when this is dropped.
struct Listener {
    child: Child,
    url: String,
    lines: Receiver<String>,
}

impl Listener {
    fn start(directory: &TempDir, arguments: &[&str]) -> Self {
        let mut child = laneway(directory)
            .args(["listen", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let first = lines.recv_timeout(PATIENCE).expect("it says where");
        let url = first
            .strip_prefix("waiting for callbacks on ")
            .expect("a URL");
        Self {
            child,
            url: url.to_owned(),
            lines,
        }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn message(id: &str, url: &str) -> serde_json::Value {
    json!({
        "topic": "t", "delay": 0, "id": id, "payload": { "cart": 17 },
        "target": { "callback": { "url": url } },
    })
}

#[test]
fn the_listener_prints_callbacks_and_checks_their_signatures() {
    let directory = directory_with_secrets();
    let server = Server::start_in(
        Arc::clone(&directory),
        &["--callback-secrets-file", "first", "--retry", "none"],
    );
    let good = Listener::start(&directory, &["--secrets-file", "first"]);
    server.submit(&message("cart.17", &format!("{}/hook", good.url)));
    let line = good.line();
    assert!(
        line.starts_with("POST /hook  id cart.17  attempt 1  "),
        "{line}"
    );
    assert!(line.ends_with("signature is good"), "{line}");
    assert_eq!(good.line(), r#"  {"cart":17}"#);
    server.wait_for_state("cart.17", "delivered");

    let other = Listener::start(&directory, &["--secrets-file", "second"]);
    server.submit(&message("a", &other.url));
    let line = other.line();
    assert!(line.ends_with("REFUSED: the signature is wrong"), "{line}");
    server.wait_for_state("a", "dead");

    let failing = Listener::start(&directory, &["--status", "503"]);
    server.submit(&message("b", &failing.url));
    assert!(failing.line().contains("id b"));
    server.wait_for_state("b", "dead");
}

/// Parts of what is signed are joined by dots, so a dot in an id would make it two parts.
#[test]
fn what_is_signed_can_be_read_in_one_way_only() {
    let server = Server::start_in(
        directory_with_secrets(),
        &["--callback-secrets-file", "first"],
    );
    let receiver = Receivers::start("200 OK");
    server.submit(&message("victim.1826382223", &receiver.url()));
    let callback = receiver.next();
    assert_eq!(callback.header("webhook-id"), Some("victim~1826382223"));
    assert_eq!(callback.header("laneway-id"), Some("victim.1826382223"));
    let secrets: [Secret; 1] = [FIRST.parse().expect("a secret")];
    let time: u64 = callback
        .header("webhook-timestamp")
        .expect("a time")
        .parse()
        .expect("a number");
    let signed = callback.header("webhook-signature").expect("signed");
    let verify =
        |id, time, body: &str| signature::verify(&secrets, id, time, body.as_bytes(), signed);
    assert!(verify("victim~1826382223", time, &callback.body));
    assert!(!verify(
        "victim",
        1_826_382_223,
        &format!("{time}.{}", callback.body)
    ));
}

#[test]
fn a_host_with_a_secret_of_its_own_can_be_forged_by_no_other() {
    let receiver = Receivers::start("200 OK");
    let port = receiver.address.port();
    let server = Server::start_in(
        directory_with_secrets(),
        &[
            "--callback-secrets-file",
            "first",
            "--callback-host-secrets",
            &format!("localhost:{port}=second"),
        ],
    );
    for (url, secret, other) in [
        (format!("http://localhost:{port}/"), SECOND, FIRST),
        (format!("http://127.0.0.1:{port}/"), FIRST, SECOND),
    ] {
        server
            .submit(&json!({ "topic": "t", "delay": 0, "target": { "callback": { "url": url } } }));
        let callback = receiver.next();
        let header = |name| callback.header(name).expect(name);
        let time = header("webhook-timestamp").parse().expect("a number");
        let by = |secret: &str| {
            let secret = secret.parse().expect("a secret");
            let (id, signed) = (header("webhook-id"), header("webhook-signature"));
            signature::verify(&[secret], id, time, callback.body.as_bytes(), signed)
        };
        assert!(by(secret) && !by(other), "{url}");
    }
}

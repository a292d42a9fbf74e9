//! Attempts whose outcome is not known: a message that may have been delivered is not taken back with a yes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use waiting::wait_for_blocking;

use crate::harness::{Server, empty_directory, laneway};
use crate::receiver::Receivers;

/// What a receiver does with a request that it has read.
#[derive(Clone, Copy)]
enum Manner {
    /// It keeps the connection, and says nothing.
    Hang,
    /// It hangs up.
    Close,
    /// It answers this.
    Answer(&'static str),
}

/// A receiver that need not answer.
struct Rude {
    address: SocketAddr,
    /// How many requests came, as a whole.
    came: Arc<AtomicUsize>,
    manner: Arc<Mutex<Manner>>,
    /// Connections that wait for an answer.
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl Rude {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let rude = Self {
            address: listener.local_addr().expect("bound"),
            came: Arc::default(),
            manner: Arc::new(Mutex::new(manner)),
            held: Arc::default(),
        };
        let (came, manner) = (Arc::clone(&rude.came), Arc::clone(&rude.manner));
        let held = Arc::clone(&rude.held);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                read_request(&stream);
                let manner = *manner.lock().expect("not poisoned");
                // Counted before the caller hears of it, and after it can be answered.
                if let Manner::Hang = manner {
                    held.lock().expect("not poisoned").push(stream);
                    came.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                came.fetch_add(1, Ordering::SeqCst);
                if let Manner::Answer(status) = manner {
                    answer(&stream, status);
                }
            }
        });
        rude
    }

    fn behave(&self, manner: Manner) {
        *self.manner.lock().expect("not poisoned") = manner;
    }

    /// Answers those that wait.
    fn answer_all(&self, status: &str) {
        for stream in self.held.lock().expect("not poisoned").drain(..) {
            answer(&stream, status);
        }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    fn message(&self, id: &str, timeout: &str, retry: &[&str]) -> Value {
        json!({
            "id": id,
            "topic": "reminders",
            "delay": 0,
            "retry": retry,
            "target": { "callback": {
                "url": format!("http://{}/hook", self.address),
                "timeout": timeout,
            }},
        })
    }
}

fn read_request(stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let _ = reader.read_exact(&mut vec![0; length]);
}

fn answer(mut stream: &TcpStream, status: &str) {
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes());
}

fn wait_for_failures(server: &Server, id: &str, failures: u64) {
    wait_for_blocking!(
        {
            let message = server.get(&format!("/v1/messages/{id}")).json();
            message["failures"].as_u64() >= Some(failures)
        },
        "{failures} attempts of {id} failed"
    );
}

fn refuses_to_change(server: &Server, id: &str) {
    let path = format!("/v1/messages/{id}");
    let withdrawn = server.request("DELETE", &path);
    assert_eq!(withdrawn.status, 409, "{withdrawn:?}");
    let problem = withdrawn.json();
    assert_eq!(problem["code"], "state");
    assert_eq!(problem["state"], "scheduled");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains("may have been delivered"), "{detail}");
    let extended = server.send("POST", &format!("{path}/extend"), &json!({ "by": "1h" }));
    assert_eq!(extended.status, 409, "{extended:?}");
    assert_eq!(server.get(&path).json()["may_have_been_delivered"], true);
}

#[test]
fn a_callback_without_an_answer_may_have_been_delivered() {
    for manner in [Manner::Hang, Manner::Close] {
        let server = Server::start(&[]);
        let receiver = Rude::start(manner);
        let id = server.submit(&receiver.message("a", "300ms", &["1h"]));
        wait_for_failures(&server, &id, 1);
        wait_for_blocking!(receiver.came() == 1, "the receiver has read it");
        refuses_to_change(&server, &id);

        // It is in doubt however the process ends.
        let server = Server::start_in(server.kill(), &[]);
        refuses_to_change(&server, &id);

        let stopped = server.request("DELETE", "/v1/messages/a?stop=true");
        assert_eq!(stopped.status, 200, "{stopped:?}");
        let stopped = stopped.json();
        assert_eq!(stopped["state"], "withdrawn");
        assert_eq!(stopped["may_have_been_delivered"], true);
        let server = Server::start_in(server.kill(), &[]);
        let message = server.get("/v1/messages/a").json();
        assert_eq!(message["may_have_been_delivered"], true, "{message}");
        assert_eq!(message["history"][1]["what"], "stopped", "{message}");
        let again = server.request("DELETE", "/v1/messages/a?stop=true");
        assert_eq!(
            (again.status, &again.json()["state"]),
            (409, &json!("withdrawn"))
        );
    }
}

#[test]
fn a_server_that_is_killed_in_an_attempt_may_have_delivered() {
    let server = Server::start(&[]);
    let receiver = Rude::start(Manner::Hang);
    let id = server.submit(&receiver.message("a", "1m", &["1h"]));
    let later = json!({
        "id": "later",
        "topic": "reminders",
        "delay": "1h",
        "target": { "callback": { "url": "http://127.0.0.1:9999/" } },
    });
    server.submit(&later);
    wait_for_blocking!(receiver.came() == 1, "the receiver has it");
    let directory = server.kill();
    receiver.behave(Manner::Answer("503 Service Unavailable"));
    let server = Server::start_in(directory, &[]);
    wait_for_failures(&server, &id, 1);
    refuses_to_change(&server, &id);
    // Nor does an orderly end make it certain. What was not due is.
    let server = Server::start_in(server.stop(), &[]);
    refuses_to_change(&server, &id);
    let withdrawn = server.request("DELETE", "/v1/messages/later");
    assert_eq!(withdrawn.status, 200, "{withdrawn:?}");
}

#[test]
fn what_was_stopped_is_not_tried_again() {
    let server = Server::start(&[]);
    let receiver = Rude::start(Manner::Close);
    let id = server.submit(&receiver.message("a", "1m", &["4s", "4s"]));
    wait_for_failures(&server, &id, 1);
    let stopped = server.send(
        "POST",
        "/v1/messages:withdraw",
        &json!({ "ids": ["a"], "stop": true }),
    );
    let stopped = stopped.json();
    assert_eq!(stopped["changed"], 1, "{stopped}");
    assert_eq!(stopped["results"][0]["may_have_been_delivered"], true);
    let before = receiver.came();
    // What is due after the next attempt would have been shows that there was none.
    let witness = Receivers::start("200 OK");
    server.submit(&json!({
        "topic": "reminders",
        "delay": "6s",
        "target": { "callback": { "url": witness.url() } },
    }));
    witness.next();
    assert_eq!(receiver.came(), before);
}

#[test]
fn an_answer_says_nothing_about_an_earlier_attempt_without_one() {
    let server = Server::start(&[]);
    let receiver = Rude::start(Manner::Close);
    let id = server.submit(&receiver.message("a", "1m", &["1s", "1h"]));
    wait_for_failures(&server, &id, 1);
    receiver.behave(Manner::Answer("500 Internal Server Error"));
    wait_for_failures(&server, &id, 2);
    refuses_to_change(&server, &id);
}

#[test]
fn what_was_certainly_not_delivered_is_taken_back() {
    let server = Server::start(&[]);
    let unavailable = Rude::start(Manner::Answer("503 Service Unavailable"));
    let rejecting = Rude::start(Manner::Answer("404 Not Found"));
    let refusing = Rude {
        address: {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
            listener.local_addr().expect("bound")
        },
        came: Arc::default(),
        manner: Arc::new(Mutex::new(Manner::Hang)),
        held: Arc::default(),
    };
    let mut unresolved = refusing.message("d", "1m", &["1h"]);
    unresolved["target"]["callback"]["url"] = json!("http://nowhere.invalid/hook");
    for message in [
        unavailable.message("a", "1m", &["1h"]),
        rejecting.message("b", "1m", &["1h"]),
        refusing.message("c", "1m", &["1h"]),
        unresolved,
    ] {
        let id = server.submit(&message);
        wait_for_failures(&server, &id, 1);
        // Stop is no more than a withdraw where nothing is in doubt.
        let stop = if id == "a" { "?stop=true" } else { "" };
        let withdrawn = server.request("DELETE", &format!("/v1/messages/{id}{stop}"));
        assert_eq!(withdrawn.status, 200, "{id}: {withdrawn:?}");
        assert!(withdrawn.json().get("may_have_been_delivered").is_none());
    }
}

#[test]
fn a_message_is_stopped_while_its_attempt_runs() {
    let server = Server::start(&[]);
    let receiver = Rude::start(Manner::Hang);
    let id = server.submit(&receiver.message("a", "1m", &["50ms"]));
    wait_for_blocking!(receiver.came() == 1, "the attempt runs");
    let withdrawn = server.request("DELETE", "/v1/messages/a");
    assert_eq!(
        (withdrawn.status, &withdrawn.json()["state"]),
        (409, &json!("firing"))
    );
    let stopped = server.request("DELETE", "/v1/messages/a?stop=true");
    assert_eq!(stopped.status, 200, "{stopped:?}");
    assert_eq!(stopped.json()["may_have_been_delivered"], true);
    assert_eq!(server.state(&id), "withdrawn");
    // What the attempt is answered counts no more.
    receiver.answer_all("200 OK");
    wait_for_blocking!(
        { server.figure("laneway_delay_callbacks_total{outcome=\"delivered\"}") == 1 },
        "the attempt has ended"
    );
    let server = Server::start_in(server.stop(), &[]);
    let message = server.get("/v1/messages/a").json();
    assert_eq!(message["state"], "withdrawn", "{message}");
    assert_eq!(receiver.came(), 1);
}

#[test]
fn the_command_line_stops_what_it_cannot_take_back() {
    let server = Server::start(&[]);
    let receiver = Rude::start(Manner::Close);
    let id = server.submit(&receiver.message("a", "5s", &["1h"]));
    wait_for_failures(&server, &id, 1);
    let directory = empty_directory();
    let withdraw = |arguments: &[&str]| {
        let mut command = laneway(&directory);
        command.env("LANEWAY_SERVER", server.url());
        command.args(["delay", "withdraw", "a"]).args(arguments);
        command.output().expect("the binary starts")
    };
    let refused = withdraw(&[]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("may have been delivered"), "{said}");
    let stopped = withdraw(&["--stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    let said = String::from_utf8_lossy(&stopped.stdout);
    assert!(said.starts_with("stopped: a"), "{said}");
    assert!(
        said.trim_end().ends_with("it may have been delivered"),
        "{said}"
    );
}

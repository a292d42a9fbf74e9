//! `laneway delay` and `laneway dead`, typed at a running server.

use std::process::Output;

use crate::harness::{Server, empty_directory, laneway};
use crate::receiver::Receivers;
use serde_json::Value;
use waiting::wait_for_blocking;

struct Shell {
    server: Server,
}

impl Shell {
    fn output(&self, arguments: &[&str]) -> Output {
        laneway(&empty_directory())
            .env("LANEWAY_SERVER", self.server.url())
            .args(arguments)
            .output()
            .expect("the binary starts")
    }

    /// What a command prints that succeeds.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).expect("JSON")
    }

    /// What a command says that fails.
    fn fail(&self, arguments: &[&str]) -> String {
        self.fail_with(1, arguments)
    }

    fn fail_with(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }
}

#[test]
fn a_message_from_the_command_line_to_the_receiver() {
    let shell = Shell {
        server: Server::start(&[]),
    };
    let receiver = Receivers::start("200 OK");
    let said = shell.run(&[
        "delay",
        "submit",
        "--topic",
        "reminders",
        "--in",
        "50ms",
        "--callback",
        &receiver.url(),
        "--payload",
        r#"{"cart":17}"#,
        "--id",
        "order-4711",
        "--header",
        "X-Cart: 17",
        "--metadata",
        "customer=7",
        "--retry",
        "1s,2s",
        "--method",
        "put",
        "--timeout",
        "3s",
    ]);
    assert!(said.starts_with("accepted: order-4711, due 20"), "{said}");
    let callback = receiver.next();
    assert_eq!(callback.line, "PUT /hook HTTP/1.1");
    assert_eq!(callback.body, r#"{"cart":17}"#);
    assert_eq!(callback.header("x-cart"), Some("17"));
    shell.server.wait_for_state("order-4711", "delivered");
    let shown = shell.run(&["delay", "get", "order-4711"]);
    for part in [
        "order-4711",
        "reminders",
        "delivered",
        "PUT http://",
        "customer",
        "(attempt 1)",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    assert_eq!(
        shell.json(&["delay", "get", "order-4711"])["state"],
        "delivered"
    );
}

#[test]
fn messages_are_listed_extended_and_withdrawn() {
    let shell = Shell {
        server: Server::start(&["--bus", "file:bus"]),
    };
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--in",
        "1h",
        "--callback",
        "https://example.com/",
    ];
    let key = [&submit[..], &["--idempotency-key", "k", "--id", "a"]].concat();
    assert!(shell.run(&key).starts_with("accepted: a, due "));
    assert!(shell.run(&key).starts_with("was there already: a, due "));
    shell.run(&[
        "delay",
        "submit",
        "--topic",
        "u",
        "--at",
        "2999-01-01T00:00:00Z",
        "--bus",
        "orders",
        "--aggregate-id",
        "order-1",
        "--event-type",
        "OrderExpired",
        "--id",
        "b",
    ]);

    let list = shell.run(&["delay", "list"]);
    for part in [
        "ID",
        "TOPIC",
        "a",
        "scheduled",
        "in 59m",
        "POST https://example.com/",
        "bus orders order-1",
    ] {
        assert!(list.contains(part), "{part}:\n{list}");
    }
    let list = shell.json(&["delay", "list", "--topic", "u"]);
    assert_eq!(list["messages"].as_array().map(Vec::len), Some(1));

    assert!(
        shell
            .run(&["delay", "extend", "a", "--by", "10m"])
            .starts_with("extended: a, due ")
    );
    shell.run(&["delay", "extend", "a", "--to", "2999-01-01T00:00:00Z"]);
    assert!(
        shell
            .run(&["delay", "withdraw", "a"])
            .starts_with("withdrawn: a")
    );
    let refused = shell.fail_with(4, &["delay", "withdraw", "a"]);
    assert!(
        refused.contains("cannot withdraw: the message is withdrawn (409)"),
        "{refused}"
    );
    assert_eq!(
        shell.run(&["delay", "list", "--state", "firing"]),
        "no messages\n"
    );
}

#[test]
fn dead_letters_are_listed_replayed_and_purged() {
    let shell = Shell {
        server: Server::start(&["--retry", "none"]),
    };
    let receiver = Receivers::start("500 Oops");
    for id in ["a", "b", "c"] {
        shell.run(&[
            "delay",
            "submit",
            "--topic",
            "t",
            "--in",
            "0s",
            "--callback",
            &receiver.url(),
            "--id",
            id,
        ]);
        shell.server.wait_for_state(id, "dead");
    }
    assert!(shell.run(&["dead", "list"]).contains("dead"));
    receiver.answer("200 OK");
    assert!(
        shell
            .run(&["dead", "replay", "a"])
            .starts_with("accepted: ")
    );
    assert_eq!(shell.run(&["dead", "purge", "b"]), "purged: 1\n");
    assert_eq!(
        shell.run(&["dead", "replay", "--all", "--topic", "t"]),
        "replayed: 1\n"
    );
    assert_eq!(shell.json(&["dead", "purge", "--all"])["purged"], 0);
    assert_eq!(shell.run(&["dead", "list"]), "no messages\n");
}

#[test]
fn what_goes_wrong_is_explained() {
    let shell = Shell {
        server: Server::start(&[]),
    };
    let submit = ["delay", "submit", "--topic", "t", "--in"];
    let error =
        shell.fail(&[&submit[..], &["soon", "--callback", "https://example.com/"]].concat());
    assert!(
        error.contains("delay: ") && error.contains("1h30m"),
        "{error}"
    );
    let error = shell.fail(&[&submit[..], &["1s", "--callback", "http://10.0.0.1/"]].concat());
    assert!(
        error.contains("target.callback.url: 10.0.0.1 is not a public address"),
        "{error}"
    );
    let payload = [
        "1s",
        "--callback",
        "https://example.com/",
        "--payload",
        "{oops",
    ];
    let error = shell.fail(&[&submit[..], &payload].concat());
    assert!(error.contains("--payload is not JSON"), "{error}");
    let error = shell.fail_with(3, &["delay", "get", "nobody"]);
    assert!(error.contains("there is no message nobody"), "{error}");

    // A port that was free a moment ago, and that nobody listens on now.
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let nobody = format!("http://{}", free.expect("a port"));
    let error = shell.fail_with(5, &["delay", "list", "--server", &nobody]);
    assert!(error.contains("start one with `laneway serve`"), "{error}");
    let error = shell.fail(&["delay", "list", "--server", "localhost"]);
    assert!(error.contains("http://127.0.0.1:7070"), "{error}");
}

/// A message is what its sender wrote: keys twice, spaces, numbers that no machine number holds.
#[test]
fn payloads_and_answers_go_byte_for_byte() {
    const PAYLOAD: &str = r#"{"b":12345678901234567890123,"a":1e2, "a":3}"#;
    let shell = Shell {
        server: Server::start(&[]),
    };
    let receiver = Receivers::start("200 OK");
    let url = receiver.url();
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--callback",
        &url,
        "--payload",
        PAYLOAD,
    ];
    shell.run(&[&submit[..], &["--in", "0s", "--quiet"]].concat());
    assert_eq!(receiver.next().body, PAYLOAD);
    shell.run(&[&submit[..], &["--in", "1h", "--id", "big"]].concat());
    let whole = shell.server.get("/v1/messages/big").body;
    assert!(whole.contains(PAYLOAD), "{whole}");
    let shown = shell.run(&["delay", "get", "big", "--json"]);
    assert_eq!(shown, format!("{whole}\n"));
    assert!(shell.run(&["delay", "get", "big"]).contains(PAYLOAD));
}

#[test]
fn scripts_get_exit_codes_json_and_silence() {
    let shell = Shell {
        server: Server::start(&[]),
    };
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--callback",
        "https://example.com/",
        "--id",
        "a",
    ];
    let said = shell.run(&[&submit[..], &["--in", "1h", "--retry", "none", "--quiet"]].concat());
    assert_eq!(said, "");
    assert_eq!(
        shell.json(&["delay", "get", "a"])["retry"],
        serde_json::json!([])
    );
    for (code, arguments, member, value) in [
        (
            4,
            [&submit[..], &["--in", "2h"]].concat(),
            "code",
            "id_taken",
        ),
        (3, vec!["delay", "get", "b"], "code", "no_such_message"),
        (
            1,
            [&submit[..], &["--in", "soon"]].concat(),
            "field",
            "delay",
        ),
        (
            1,
            [&submit[..], &["--in", "1s", "--payload", "{"]].concat(),
            "code",
            "failed",
        ),
        (
            5,
            vec!["delay", "get", "a", "--server", "http://127.0.0.1:1"],
            "code",
            "unreachable",
        ),
        (1, vec!["delay", "get", ".."], "code", "failed"),
    ] {
        let error = shell.fail_with(code, &[&arguments[..], &["--json"]].concat());
        let error: Value = serde_json::from_str(&error).expect("JSON");
        assert_eq!(error[member], value, "{arguments:?}: {error}");
    }
    let twice = shell.fail_with(4, &[&submit[..], &["--in", "2h"]].concat());
    assert!(twice.contains("laneway: id: a names"), "{twice}");
}

#[test]
fn an_id_that_was_withdrawn_says_so_and_can_be_planned_anew() {
    let shell = Shell {
        server: Server::start(&[]),
    };
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--in",
        "1h",
        "--id",
        "cart-17",
        "--callback",
    ];
    let submit = [&submit[..], &["https://example.com/"]].concat();
    shell.run(&submit);
    shell.run(&["delay", "withdraw", "cart-17"]);
    let said = shell.run(&submit);
    assert!(said.starts_with("was there already: cart-17"), "{said}");
    assert!(said.contains("it is withdrawn"), "{said}");
    let said = shell.run(&[&submit[..], &["--replace"]].concat());
    assert!(said.starts_with("accepted: cart-17"), "{said}");
    assert_eq!(shell.server.state("cart-17"), "scheduled");
}

#[test]
fn times_are_written_in_one_way_everywhere() {
    let shell = Shell {
        server: Server::start(&["--retry", "1m30s,PT1H", "--max-body", "1MiB"]),
    };
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--callback",
        "https://example.com/",
    ];
    for (text, millis) in laneway_units::table::DURATIONS {
        if millis > 60_000 {
            shell.run(&[&submit[..], &["--in", text]].concat());
        }
    }
    for text in ["1h 30m", "1m1h", "1.5h", "P1M"] {
        let error = shell.fail(&[&submit[..], &["--in", text]].concat());
        let refusal = laneway_units::Error::Duration(text.to_owned()).to_string();
        assert!(error.contains(&refusal), "{error}");
    }
    for when in [["--in", "5000000"], ["--at", "1900000000000"]] {
        shell.run(&[&submit[..], &when].concat());
    }
    let error = shell.fail(&[&submit[..], &["--at", "1900000000"]].concat());
    assert!(error.contains("multiply it by 1000"), "{error}");
    shell.run(&[&submit[..], &["--in", "1h", "--id", "a"]].concat());
    let error = shell.fail(&["delay", "extend", "a", "--to", "2020-01-01T00:00:00Z"]);
    assert!(
        error.contains("2020-01-01T00:00:00.000Z is not later than 20"),
        "{error}"
    );
    // Whatever is missing, all ways to give it are named.
    for (arguments, ways) in [
        (
            &["delay", "submit", "--topic", "t"][..],
            &["--in", "--at", "--callback", "--bus"][..],
        ),
        (&["delay", "extend", "a"], &["--by", "--to"]),
        (&["dead", "purge"], &["--all", "--topic", "ID"]),
        (&["dead", "replay"], &["--all", "ID"]),
    ] {
        let error = shell.fail_with(2, arguments);
        for way in ways {
            assert!(error.contains(way), "{way}: {error}");
        }
    }
}

#[test]
fn a_list_says_what_goes_wrong_and_what_is_being_delivered() {
    let shell = Shell {
        server: Server::start(&["--retry", "1h"]),
    };
    let receiver = Receivers::start("500 Oops");
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--in",
        "0s",
        "--callback",
    ];
    shell.run(&[&submit[..], &[&receiver.url(), "--id", "a"]].concat());
    wait_for_blocking!(
        {
            let list = shell.run(&["delay", "list"]);
            list.contains("LAST ERROR") && list.contains("500") && list.contains(", again")
        },
        "it is tried again"
    );
    // Takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/", silent.local_addr().expect("bound"));
    shell.run(&[&submit[..], &[&url, "--id", "b", "--timeout", "5m"]].concat());
    wait_for_blocking!(
        { shell.run(&["delay", "list"]).contains("firing") },
        "it is listed as firing"
    );
}

#[test]
fn the_server_of_the_configuration_is_asked() {
    let shell = Shell {
        server: Server::start(&[]),
    };
    let directory = empty_directory();
    let file = directory.path().join("other.toml");
    std::fs::write(
        &file,
        format!("serve.listen = \"{}\"", shell.server.address),
    )
    .expect("written");
    let run = |arguments: &[&str]| {
        laneway(&directory)
            .args(arguments)
            .output()
            .expect("the binary starts")
    };
    let output = run(&["delay", "list", "--config", "other.toml"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "no messages\n",
        "{output:?}"
    );
    let output = run(&["delay", "list", "--config", "missing.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("missing.toml: No such file"), "{error}");
    assert_eq!(error.matches("os error").count(), 1, "{error}");
    let output = run(&["delay", "list", "--server", "http://me:hunter2@127.0.0.1:1"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("http://***@127.0.0.1:1"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn help_teaches_with_examples() {
    let directory = empty_directory();
    for (arguments, lesson) in [
        (&["delay", "--help"][..], "submit"),
        (
            &["delay", "submit", "--help"],
            "--callback http://127.0.0.1:8000/hook",
        ),
        (
            &["delay", "extend", "--help"],
            "laneway delay extend order-4711 --by 10m",
        ),
        (
            &["dead", "replay", "--help"],
            "laneway dead replay --all --topic reminders",
        ),
        (
            &["dead", "purge", "--help"],
            "laneway dead purge --topic reminders",
        ),
    ] {
        let output = laneway(&directory)
            .args(arguments)
            .output()
            .expect("it starts");
        let help = String::from_utf8_lossy(&output.stdout);
        assert!(help.contains(lesson), "{lesson}:\n{help}");
    }
}

/// A server that gives these answers, one for each connection. `None`: it reads the request and hangs up.
fn scripted(answers: Vec<Option<(&'static str, String)>>) -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = vec![0; 64 << 10];
            let _ = stream.read(&mut request);
            if let Some((status, body)) = answer {
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    url
}

fn at(server: &str, arguments: &[&str]) -> Output {
    laneway(&empty_directory())
        .env("LANEWAY_SERVER", server)
        .args(arguments)
        .output()
        .expect("the binary starts")
}

#[test]
fn a_request_without_an_answer_may_have_happened() {
    let submit = [
        "delay",
        "submit",
        "--topic",
        "t",
        "--in",
        "5s",
        "--callback",
        "http://127.0.0.1:1/",
    ];
    for (code, name, arguments) in [
        (7, "outcome_unknown", &submit[..]),
        (7, "outcome_unknown", &["delay", "withdraw", "x"]),
        (7, "outcome_unknown", &["dead", "replay", "x"]),
        // Nothing can have happened.
        (5, "unreachable", &["delay", "get", "x"]),
    ] {
        let server = scripted(vec![None]);
        let output = at(&server, &[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let error: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(error["code"], name, "{error}");
    }
    let unknown = serde_json::json!({ "code": "outcome_unknown", "detail": "no answer" });
    let server = scripted(vec![Some(("504 Gateway Timeout", unknown.to_string()))]);
    let output = at(&server, &["delay", "withdraw", "x"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[test]
fn replaying_all_leaves_out_what_is_dead_no_more_and_says_how_far_it_came() {
    let list = serde_json::json!({
        "messages": [{ "id": "a" }, { "id": "b" }, { "id": "c" }, { "id": "d" }],
        "next": null,
    });
    let answer = |status: &'static str, code: &str| {
        let body = serde_json::json!({ "id": "new", "code": code, "detail": "so it is" });
        Some((status, body.to_string()))
    };
    let listed = Some(("200 OK", list.to_string()));
    let answers = vec![
        listed.clone(),
        answer("202 Accepted", ""),
        answer("404 Not Found", "no_such_message"),
        answer("409 Conflict", "state"),
        answer("202 Accepted", ""),
    ];
    let output = at(&scripted(answers), &["dead", "replay", "--all", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said, serde_json::json!({ "replayed": 2, "skipped": 2 }));

    let answers = || {
        vec![
            listed.clone(),
            answer("202 Accepted", ""),
            answer("503 Service Unavailable", "stopping"),
        ]
    };
    let output = at(&scripted(answers()), &["dead", "replay", "--all", "--json"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(
        (&said["code"], &said["replayed"]),
        (&"stopping".into(), &1.into())
    );
    let output = at(&scripted(answers()), &["dead", "replay", "--all"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("replayed before that: 1"), "{said}");
}

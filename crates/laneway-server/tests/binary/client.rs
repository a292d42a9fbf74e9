//! `laneway delay` and `laneway dead`, typed at a running server.

use std::process::Output;

use crate::harness::{Server, empty_directory, laneway};
use crate::receiver::Receivers;
use serde_json::Value;

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
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
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
        server: Server::start(&[]),
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
    let refused = shell.fail(&["delay", "withdraw", "a"]);
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
        error.contains("delay: ") && error.contains("15m"),
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
    let error = shell.fail(&["delay", "get", "nobody"]);
    assert!(error.contains("there is no message nobody"), "{error}");

    // A port that was free a moment ago, and that nobody listens on now.
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let nobody = format!("http://{}", free.expect("a port"));
    let error = shell.fail(&["delay", "list", "--server", &nobody]);
    assert!(error.contains("start one with `laneway serve`"), "{error}");
    let error = shell.fail(&["delay", "list", "--server", "localhost"]);
    assert!(error.contains("http://127.0.0.1:7070"), "{error}");
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

//! The routes of `SorakaQ`, as its clients use them.

use crate::harness::{Answer, Server};
use crate::receiver::Receivers;
use serde_json::{Value, json};

/// Its clients did not have to say that they send JSON.
fn post(server: &Server, route: &str, body: &Value) -> Answer {
    server.send_with(
        "POST",
        &format!("/sorakaq/msg/{route}"),
        "",
        &body.to_string(),
    )
}

fn submission(receiver: &Receivers, delay: u64) -> Value {
    json!({
        "topic_name": "delay_test", "delay_time": delay, "ttr": 1000,
        "callback": { "request_type": "POST", "url": receiver.url(), "params": "{\"id\":111}" },
    })
}

#[test]
fn messages_are_submitted_delivered_moved_and_cancelled() {
    let server = Server::start(&["--sorakaq", "on"]);
    let receiver = Receivers::start("200 OK");
    let submit = |delay| {
        let answer = post(&server, "submit", &submission(&receiver, delay));
        assert_eq!(answer.status, 200);
        let answer = answer.json();
        assert_eq!(
            (&answer["ec"], &answer["em"]),
            (&json!(200), &json!("success"))
        );
        answer["result"]["msgId"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let id = submit(50);
    let callback = receiver.next();
    assert_eq!(
        (callback.body.as_str(), callback.header("webhook-id")),
        (r#"{"id":111}"#, Some(id.as_str()))
    );

    let id = submit(3_600_000);
    let due = |id: &str| server.get(&format!("/v1/messages/{id}")).json()["due"].clone();
    let before = due(&id);
    let change = |route, add_time: u64| {
        let body = json!({ "topic_name": "delay_test", "msg_id": id, "add_time": add_time });
        post(&server, route, &body).json()
    };
    let yes = json!({ "ec": 200, "em": "success", "result": true });
    let no = json!({ "ec": 200, "em": "success", "result": false });
    assert_eq!(change("addTime", 2_000), yes);
    assert!(due(&id).as_str() > before.as_str());
    assert_eq!(change("cancel", 0), yes);
    // It was possible there to bring a message back like this.
    assert_eq!(change("addTime", 2_000), no);
    assert_eq!(change("cancel", 0), no);
    assert_eq!(server.state(&id), "withdrawn");
}

#[test]
fn mistakes_are_answered_in_its_envelope() {
    let server = Server::start(&["--sorakaq", "on", "--max-delay", "7d"]);
    let receiver = Receivers::start("200 OK");
    let changed = |pointer: &str, value: Value| {
        let mut body = submission(&receiver, 1_000);
        *body.pointer_mut(pointer).expect(pointer) = value;
        body
    };
    for (route, body, ec, named) in [
        (
            "submit",
            changed("/topic_name", json!("")),
            401,
            "topic_name",
        ),
        (
            "submit",
            changed("/callback/url", json!("")),
            401,
            "callback.url",
        ),
        (
            "submit",
            changed("/callback/url", json!("http://10.0.0.1/")),
            401,
            "callback.url",
        ),
        (
            "submit",
            changed("/callback/request_type", json!("PUT")),
            401,
            "callback.request_type",
        ),
        (
            "submit",
            changed("/delay_time", json!("soon")),
            401,
            "delay_time",
        ),
        (
            "submit",
            changed("/delay_time", json!(8_u64 * 86_400_000)),
            501,
            "away",
        ),
        ("cancel", json!({ "topic_name": "t" }), 401, "msg_id"),
        (
            "addTime",
            json!({ "topic_name": "t", "msg_id": "x" }),
            401,
            "add_time",
        ),
        ("cancel", json!("x"), 401, "body"),
    ] {
        let answer = post(&server, route, &body);
        assert_eq!(answer.status, 200);
        let answer = answer.json();
        assert_eq!(
            (&answer["ec"], &answer["result"]),
            (&json!(ec), &json!(false)),
            "{body}: {answer}"
        );
        let em = answer["em"].as_str().expect("words");
        assert!(em.contains(named), "{named}: {em}");
    }
}

#[test]
fn without_the_switch_there_is_nothing() {
    let server = Server::start(&[]);
    assert_eq!(post(&server, "submit", &json!({})).status, 404);
}

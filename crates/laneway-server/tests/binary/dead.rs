//! Messages that were given up.

use crate::harness::Server;
use crate::receiver::Receivers;
use serde_json::json;

fn submit(server: &Server, receiver: &Receivers, id: &str, topic: &str) {
    server.submit(&json!({
        "id": id, "topic": topic, "delay": 0, "payload": id,
        "target": { "callback": { "url": receiver.url() } },
    }));
}

#[test]
fn a_receiver_that_is_gone_for_good_makes_a_dead_letter_at_once() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("410 Gone");
    submit(&server, &receiver, "a", "t");
    server.wait_for_state("a", "dead");
    assert_eq!(receiver.pending().len(), 1);
    let message = server.get("/v1/messages/a").json();
    assert_eq!(message["cause"], "rejected");
    assert_eq!(server.figure("laneway_delay_messages{state=\"dead\"}"), 1);
}

#[test]
fn the_schedule_of_a_topic_decides_when_to_give_up() {
    let server = Server::start(&["--topic-retry", "impatient=10ms"]);
    let receiver = Receivers::start("500 Oops");
    submit(&server, &receiver, "a", "impatient");
    server.wait_for_state("a", "dead");
    assert_eq!(receiver.pending().len(), 2);
    assert_eq!(server.get("/v1/messages/a").json()["cause"], "exhausted");
}

#[test]
fn dead_letters_are_listed_replayed_and_purged() {
    let server = Server::start(&["--retry", "none"]);
    let receiver = Receivers::start("500 Oops");
    for (id, topic) in [("a", "t"), ("b", "t"), ("c", "u")] {
        submit(&server, &receiver, id, topic);
        server.wait_for_state(id, "dead");
    }
    receiver.pending();
    let dead = |query: &str| {
        let list = server.get(&format!("/v1/dead{query}")).json();
        list["messages"].as_array().expect("messages").len()
    };
    assert_eq!((dead(""), dead("?topic=t")), (3, 2));

    receiver.answer("200 OK");
    let answer = server.request("POST", "/v1/dead/a/replay");
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    server.wait_for_state(&id, "delivered");
    assert_eq!(receiver.next().body, "\"a\"");
    assert_eq!(dead(""), 2);
    assert_eq!(server.request("POST", "/v1/dead/a/replay").status, 404);

    let answer = server.request("DELETE", &format!("/v1/dead/{id}"));
    assert_eq!(
        (answer.status, &answer.json()["state"]),
        (409, &json!("delivered"))
    );
    assert_eq!(
        server.request("DELETE", "/v1/dead/b").json(),
        json!({ "purged": 1 })
    );
    assert_eq!(
        server.request("DELETE", "/v1/dead?topic=t").json(),
        json!({ "purged": 0 })
    );
    assert_eq!(
        server.request("DELETE", "/v1/dead?all=true").json(),
        json!({ "purged": 1 })
    );
    assert_eq!(dead(""), 0);
}

//! Envelopes go both ways between us and a jxt-core bus. The other side is a small Go program in
//! `tests/interop` of the repository.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::{Bus, Envelope, testing};

const AGGREGATES: usize = 5;
const EVENTS: usize = 40;

/// The program, or why there is none.
pub(crate) fn program() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    let go = |arguments: &[&str]| {
        Command::new("go")
            .args(arguments)
            .current_dir(&source)
            .output()
    };
    let fetched = go(&["mod", "download"]).map_err(|error| format!("Go cannot be run: {error}"))?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
        return Err(format!("Go modules cannot be had: {said}"));
    }
    let built_path = built.to_str().expect("a path in the target folder");
    let building = go(&["build", "-o", built_path, "."]).expect("it ran a moment ago");
    assert!(building.status.success(), "{}", said(&building));
    Ok(built)
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

async fn run(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let running = tokio::task::spawn_blocking(move || command.output());
    let output = running.await.expect("no panic").expect("it can be run");
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Checks both directions at a server that they and we can be told of.
pub(crate) async fn both_ways(program: &Path, server: &str, address: &str) {
    let topic = format!("interop.{}", std::process::id());
    let (aggregates, events) = (AGGREGATES.to_string(), EVENTS.to_string());

    // Theirs: a topic that they made.
    run(program, &["publish", server, &topic, &aggregates, &events]).await;
    let bus = Bus::open(address).await;
    let bus = bus.expect("opened");
    let seen: Arc<Mutex<HashMap<String, Vec<u64>>>> = Arc::default();
    let noted = seen.clone();
    bus.subscribe_envelope(&topic, move |event| {
        let noted = noted.clone();
        async move {
            assert_eq!(event.envelope().tenant_id(), Some("42"));
            let payload: serde_json::Value = event.json()?;
            let number = payload["number"].as_u64().expect("a number");
            let key = event.aggregate_id().to_string();
            noted.lock().unwrap().entry(key).or_default().push(number);
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    let settled = testing::settled_within(&bus, Duration::from_mins(2)).await;
    settled.expect("settled");
    let expected: Vec<u64> = (0..EVENTS as u64).collect();
    for aggregate in 0..AGGREGATES {
        let key = format!("order-{aggregate}");
        assert_eq!(seen.lock().unwrap()[&key], expected, "{key}");
    }

    // Ours, into the same topic: they read all of it.
    for number in 0..3 {
        let envelope = Envelope::builder("ours", "OrderChanged")
            .event_version(number + 1)
            .tenant_id("42")
            .json(&serde_json::json!({ "number": number }))
            .expect("valid");
        bus.publish_envelope(&topic, &envelope)
            .await
            .expect("published");
    }
    let count = (AGGREGATES * EVENTS + 3).to_string();
    let read = run(program, &["consume", server, &topic, &count]).await;
    let ours: Vec<_> = read
        .lines()
        .filter(|line| line.starts_with("ours "))
        .collect();
    assert_eq!(
        ours,
        [
            r#"ours 1 42 {"number":0}"#,
            r#"ours 2 42 {"number":1}"#,
            r#"ours 3 42 {"number":2}"#
        ]
    );
}

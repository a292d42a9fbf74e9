//! `laneway bus`: dead letters and parked events of a bus on disk, from the command line.

use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::{Bus, Envelope, Exhausted, Failure, testing};
use tempfile::TempDir;

use crate::harness::{empty_directory, laneway};

const DEADLINE: Duration = Duration::from_mins(1);

/// What a handler saw, and whether it fails.
#[derive(Clone, Default)]
struct Handled {
    fails: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<String>>>,
}

/// Opens the bus, handles what is there and closes it again: a bus on disk has one owner.
async fn handle(directory: &TempDir, exhausted: Exhausted, handled: &Handled, publish: &[&str]) {
    let bus = Bus::open(&address(directory)).await.expect("opened");
    for event in publish {
        let event = Envelope::builder("order-1", *event)
            .json(&1)
            .expect("valid");
        let published = bus.publish_envelope("orders", &event).await;
        published.expect("published");
    }
    let noted = handled.clone();
    let subscription = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .on_exhausted(exhausted)
        .envelope(move |event| {
            let noted = noted.clone();
            async move {
                if noted.fails.load(Ordering::SeqCst) {
                    return Err(Failure::new("the till is closed"));
                }
                noted
                    .seen
                    .lock()
                    .unwrap()
                    .push(event.event_type().to_owned());
                Ok(())
            }
        });
    subscription.await.expect("subscribed");
    tokio::time::timeout(DEADLINE, testing::settled(&bus))
        .await
        .expect("in time")
        .expect("settled");
    bus.close(DEADLINE).await.expect("closed");
}

fn address(directory: &TempDir) -> String {
    format!("file:{}", directory.path().join("bus").display())
}

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = laneway(directory);
    let address = address(directory);
    let command = command.arg("bus").args(arguments).args(["--bus", &address]);
    command.output().expect("it runs")
}

/// What it printed, if it succeeded.
fn said(directory: &TempDir, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_a_bus_are_listed_replayed_and_discarded() {
    let directory = empty_directory();
    let handled = Handled::default();
    handled.fails.store(true, Ordering::SeqCst);
    let events = ["Placed", "Paid", "Shipped"];
    handle(&directory, Exhausted::DeadLetter, &handled, &events).await;

    let listed = said(&directory, &["dead", "list", "orders"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(
        listed.contains("order-1") && listed.contains("the till is closed"),
        "{listed}"
    );
    let json = said(
        &directory,
        &["dead", "list", "orders", "--json", "--limit", "1"],
    );
    let first: serde_json::Value = serde_json::from_str(json.trim()).expect("JSON");
    assert_eq!(
        (&first["key"], &first["attempts"]),
        (&"order-1".into(), &1.into())
    );

    let unknown = run(&directory, &["dead", "discard", "orders", "99"]);
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no letter 99"));
    let id = first["id"].to_string();
    assert_eq!(
        said(&directory, &["dead", "discard", "orders", &id]),
        "discarded 1\n"
    );
    assert_eq!(
        said(&directory, &["dead", "replay", "orders", "--all"]),
        "replayed 2\n"
    );
    assert_eq!(said(&directory, &["dead", "list", "orders"]), "none\n");

    handled.fails.store(false, Ordering::SeqCst);
    handle(&directory, Exhausted::DeadLetter, &handled, &[]).await;
    assert_eq!(*handled.seen.lock().unwrap(), ["Paid", "Shipped"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_keys_of_a_bus_are_listed_and_released() {
    let directory = empty_directory();
    let handled = Handled::default();
    handled.fails.store(true, Ordering::SeqCst);
    handle(
        &directory,
        Exhausted::ParkKey,
        &handled,
        &["Placed", "Paid"],
    )
    .await;
    let listed = said(&directory, &["parked", "list", "orders"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");

    let unknown = run(&directory, &["parked", "release", "orders", "order-2"]);
    let errors = String::from_utf8_lossy(&unknown.stderr);
    assert!(
        !unknown.status.success() && errors.contains("order-2"),
        "{errors}"
    );
    let released = said(&directory, &["parked", "release", "orders", "order-1"]);
    assert_eq!(released, "asked to release 1\n");
    handled.fails.store(false, Ordering::SeqCst);
    handle(&directory, Exhausted::ParkKey, &handled, &["Shipped"]).await;
    assert_eq!(*handled.seen.lock().unwrap(), ["Placed", "Paid", "Shipped"]);
}

#[test]
fn a_bus_or_topic_that_is_not_there_is_told() {
    let directory = empty_directory();
    let output = run(&directory, &["dead", "list", "nosuch"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("nosuch"),
        "{errors}"
    );
    let mut command = laneway(&directory);
    let memory = command.args(["bus", "dead", "list", "orders", "--bus", "memory:"]);
    let output = memory.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("another process"),
        "{errors}"
    );
}

#[cfg(not(all(feature = "nats", feature = "kafka")))]
#[test]
fn a_bus_on_a_broker_that_was_left_out_of_the_build_names_the_feature_to_add() {
    let left_out = [
        ("nats", cfg!(feature = "nats")),
        ("kafka", cfg!(feature = "kafka")),
    ];
    for (broker, is_there) in left_out {
        if is_there {
            continue;
        }
        let url = format!("{broker}://127.0.0.1:1");
        let output = laneway(&empty_directory())
            .args(["bus", "dead", "list", "orders", "--bus", &url])
            .output()
            .expect("it runs");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        // Cargo unites the features of all packages that it builds together, and the tests of the library need both.
        if said.contains("127.0.0.1:1") && !said.contains("feature") {
            needs::skip!(format!(
                "{broker} was built for another package; run with -p laneway-server"
            ));
            return;
        }
        assert!(said.contains(&format!("--features {broker}")), "{said}");
        assert!(said.contains(&format!("`{broker}://` addresses")), "{said}");
        let output = laneway(&empty_directory())
            .args(["serve", "--listen", "127.0.0.1:0", "--bus", &url])
            .output()
            .expect("it runs");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("--features {broker}")), "{said}");
    }
}

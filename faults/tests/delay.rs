//! The fault runs of delayed messages, in their short form.

mod short;

use short::passes;

#[test]
fn killed_delayed_messages_lose_nothing() {
    needs::slow!();
    passes(&["delay-kill"]);
}

#[test]
fn a_life_of_delayed_messages_breaks_no_promise() {
    passes(&["life", "--store", "delay", "--seconds", "12"]);
}

#[test]
fn delayed_messages_without_power_lose_nothing() {
    needs::slow!();
    let text = passes(&["delay-power"]);
    if let Some(reason) = text.lines().find(|line| line.starts_with("SKIPPED")) {
        needs::skip!(reason);
    }
}

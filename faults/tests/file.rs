//! The fault runs of the bus on disk, in their short form.

mod short;

use short::passes;

/// Passes on with the reason if the machine does not allow what a run needs.
macro_rules! passes_or_skips {
    ($name:expr) => {
        let text = passes(&[$name]);
        if let Some(reason) = text.lines().find(|line| line.starts_with("SKIPPED")) {
            needs::skip!(reason);
        }
    };
}

#[test]
fn a_killed_bus_loses_nothing() {
    needs::slow!();
    passes(&["kill"]);
}

#[test]
fn a_bus_that_lives_through_everything_keeps_its_promises() {
    needs::slow!();
    passes(&["life", "--store", "file", "--seconds", "12"]);
}

#[test]
fn a_bus_without_power_loses_nothing() {
    needs::slow!();
    passes_or_skips!("power");
}

#[test]
fn a_bus_on_a_full_or_failing_disk_loses_nothing() {
    needs::slow!();
    passes_or_skips!("disk");
}

//! Panics that are expected, caught without a word.
//!
//! The client library panics over a header whose name is not UTF-8, which any producer can write. It is caught
//! where it happens, and the record becomes a dead letter. A panic hook of the application (one that
//! prints, or ends the process) should not hear of it: so a hook that knows of those panics is put before the
//! one that is there when a bus is opened.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Makes panics that are expected silent, from now on.
pub(super) fn silence_expected() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.try_with(Cell::get).unwrap_or(false) {
                before(info);
            }
        }));
    });
}

/// Does what may panic; nothing if it did.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    EXPECTED.set(true);
    // What it reads is not changed by it, so it is whole afterwards.
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_is_expected_is_caught() {
        silence_expected();
        assert_eq!(caught(|| 5), Some(5));
        let none: Option<u32> = caught(|| panic!("as expected"));
        assert_eq!(none, None);
        assert!(!EXPECTED.get(), "the next one is not");
    }
}

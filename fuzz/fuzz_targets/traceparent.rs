//! Any text: parsing never panics, and what it accepts is written in its one valid form.
#![no_main]

use laneway::trace::TraceParent;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(parent) = TraceParent::parse(text) {
        let written = parent.to_string();
        assert_eq!(TraceParent::parse(&written), Ok(parent));
        assert_eq!(written[3..52], text[3..52]);
        assert_ne!(parent.child().span_id(), parent.span_id());
    }
});

//! The `laneway` binary.
fn main() {}

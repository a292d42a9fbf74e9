//! laneway-bench
fn main() {}

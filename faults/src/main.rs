//! laneway-faults
fn main() {}

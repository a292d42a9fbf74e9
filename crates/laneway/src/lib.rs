//! An event bus that handles every key strictly in order, and all keys in parallel.

mod fnv;

pub mod testing;

//! An event bus that handles every key strictly in order, and all keys in parallel.

pub mod envelope;
mod fnv;

pub mod lanes;
pub mod retry;
pub mod headers;
pub mod topic;
pub mod trace;

pub mod testing;

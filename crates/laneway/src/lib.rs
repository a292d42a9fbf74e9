//! An event bus that handles every key strictly in order, and all keys in parallel.

mod broker;
pub mod envelope;
mod fnv;

pub mod lanes;
pub mod record;
pub mod retry;
pub mod settle;
pub mod headers;
pub mod topic;
pub mod trace;

pub mod testing;

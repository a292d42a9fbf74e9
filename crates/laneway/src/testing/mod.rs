//! What tests of handlers and of brokers are made of.
//!
//! - [`history`]: record what happened to every message, then check it against the promises of a
//!   delivery guarantee. The engine, every broker and every fault run of this repository are judged
//!   by this one checker.

pub mod history;

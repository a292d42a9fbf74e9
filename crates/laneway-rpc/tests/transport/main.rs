//! Streams and calls over real sockets, and within one process.

mod calls;
mod freeze;
mod hello;
mod streams;
mod support;
mod tls;

//! Tests of the `laneway` binary from outside: it is started, typed at, connected to and stopped.

mod cli;
mod harness;
mod serve;

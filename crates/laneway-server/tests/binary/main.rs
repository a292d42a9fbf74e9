//! Tests of the `laneway` binary from outside: it is started, typed at, connected to and stopped.

mod cli;
mod client;
mod dead;
mod durable;
mod harness;
mod hosts;
mod messages;
mod receiver;
mod refusals;
mod serve;
mod sorakaq;
mod tls;

//! Tests of the `laneway` binary from outside: it is started, typed at, connected to and stopped.

mod bus;
mod cli;
mod client;
mod dead;
mod durable;
mod harness;
mod hosts;
mod in_doubt;
mod messages;
mod receiver;
mod refusals;
mod serve;
mod signed;
mod sites;
mod sorakaq;
mod tls;
mod told;

//! A worker with centers in the same process, and with sinks that do what they are told.

mod bus;
mod credit;
mod destinations;
mod drain;
mod fence;
mod frozen;
mod http;
mod outcomes;
mod rig;

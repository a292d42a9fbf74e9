//! What a store promises, on every store there is.

mod conformance;
mod model;
mod race;
mod reopen;
mod stage;

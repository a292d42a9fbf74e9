//! What a store promises, on every store there is.

mod conformance;
mod model;
mod place;
mod race;
mod reopen;

//! What this binary is and how it was built.

use serde::Serialize;

/// The answer to "which laneway is this?".
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct BuildInfo {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) target: &'static str,
    pub(crate) profile: &'static str,
    pub(crate) rustc: &'static str,
}

pub(crate) const BUILD: BuildInfo = BuildInfo {
    name: "laneway",
    version: env!("CARGO_PKG_VERSION"),
    target: env!("BUILD_TARGET"),
    profile: env!("BUILD_PROFILE"),
    rustc: env!("BUILD_RUSTC"),
};

/// What `laneway --version` prints after the name.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ntarget:  ",
    env!("BUILD_TARGET"),
    "\nprofile: ",
    env!("BUILD_PROFILE"),
    "\nrustc:   ",
    env!("BUILD_RUSTC"),
);

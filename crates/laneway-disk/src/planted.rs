//! Faults of the past, put back on purpose: fault runs have to find them.
//!
//! Only with the feature `planted`, which nothing but the fault runs asks for, and only those that the environment variable
//! `LANEWAY_PLANTED` names, with commas between them.

/// Whether a fault of this name is put back.
#[cfg(feature = "planted")]
#[must_use]
pub fn planted(name: &str) -> bool {
    static PLANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let all = PLANTED.get_or_init(|| std::env::var("LANEWAY_PLANTED").unwrap_or_default());
    all.split(',').any(|planted| planted == name)
}

/// Never: the feature `planted` is off.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub const fn planted(_name: &str) -> bool {
    false
}

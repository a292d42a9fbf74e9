//! Faults of the past, put back on purpose: fault runs have to find them. Without the feature `planted` there are none.

#[cfg(feature = "planted")]
pub(crate) use laneway_disk::planted;

/// Never: the feature `planted` is off.
#[cfg(not(feature = "planted"))]
#[inline]
pub(crate) const fn planted(_name: &str) -> bool {
    false
}

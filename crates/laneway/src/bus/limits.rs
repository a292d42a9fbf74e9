//! The sizes at which something happens between broker and lanes. Tests make them tiny, so that windows fill, keys
//! overflow and letters are read in pieces hundreds of times where they would otherwise never.

/// The sizes at which something happens in a bus. They are no part of what is stored, and no setting: how much waits in
/// memory is bounded by the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub struct BusLimits {
    /// How far a partition may be read ahead of its lowest unsettled record. A key that fails for long stops only its
    /// own partition, and only after so many others went past it.
    pub window: usize,
    /// As many events of a key whose lane is full are loaded, and read at once.
    pub loaded: usize,
    /// And so many bytes of all keys of a partition; more only where a key would have nothing.
    pub loaded_bytes: usize,
    /// Reading on over so many offsets is cheaper than beginning elsewhere.
    pub near: u64,
    /// Parked events that one request releases; the next request follows by itself.
    pub released: usize,
    /// Letters that are read at once.
    pub letters: usize,
}

impl Default for BusLimits {
    fn default() -> Self {
        Self {
            window: 100_000,
            loaded: 512,
            loaded_bytes: 8 << 20,
            near: 256,
            released: 256,
            letters: 512,
        }
    }
}

impl BusLimits {
    /// For tests: a few events fill anything.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            window: 64,
            loaded: 4,
            loaded_bytes: 4 << 10,
            near: 3,
            released: 3,
            letters: 3,
        }
    }
}

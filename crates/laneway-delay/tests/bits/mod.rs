//! Makes choices from one random number, so that a long run of operations costs the generator one
//! number each, and shrinking towards zero leads to the first choice.

/// A number that is used up from its low end, in mixed radix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bits(pub(crate) u64);

impl Bits {
    /// A choice of `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let choice = self.0 % bound;
        self.0 /= bound;
        choice
    }
}

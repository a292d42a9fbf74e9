//! How many partitions a topic has, and which one a key belongs to.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::fnv::fnv1a_32;

const MAX: u32 = 1024;

/// A number of partitions, 1 to 1024.
///
/// Partitions let several processes share a topic; within a process all keys run in parallel anyway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Partitions(NonZeroU16);

impl Partitions {
    /// One partition.
    pub const ONE: Self = Self(NonZeroU16::MIN);

    /// Checks a number of partitions.
    ///
    /// # Errors
    /// If it is 0 or above 1024.
    pub fn new(count: u32) -> Result<Self, Error> {
        u16::try_from(count)
            .ok()
            .filter(|_| count <= MAX)
            .and_then(NonZeroU16::new)
            .map(Self)
            .ok_or(Error::Partitions(count))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        u32::from(self.0.get())
    }

    /// Every partition, from 0.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator {
        (0..self.0.get()).map(u32::from)
    }
}

impl TryFrom<u32> for Partitions {
    type Error = Error;

    fn try_from(count: u32) -> Result<Self, Error> {
        Self::new(count)
    }
}

impl From<Partitions> for u32 {
    fn from(partitions: Partitions) -> Self {
        partitions.get()
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The partition of a key: FNV-1a 32 of its bytes, modulo the number of partitions.
///
/// This is part of the stored format: every process and every release must agree on it.
///
/// ```
/// use laneway::topic::{Partitions, partition_of};
///
/// let partitions = Partitions::new(16)?;
/// assert_eq!(partition_of(b"order-1", partitions), partition_of(b"order-1", partitions));
/// assert!(partition_of(b"order-2", partitions) < 16);
/// # Ok::<(), laneway::topic::Error>(())
/// ```
#[must_use]
pub fn partition_of(key: impl AsRef<[u8]>, partitions: Partitions) -> u32 {
    fnv1a_32(key.as_ref()) % partitions.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_1_to_1024_partitions_exist() {
        for count in [0, 1025, 65_536, 65_537, u32::MAX] {
            assert_eq!(Partitions::new(count), Err(Error::Partitions(count)));
        }
        for count in [1, 2, 1024] {
            assert_eq!(Partitions::new(count).map(Partitions::get), Ok(count));
        }
        assert_eq!(Partitions::ONE.iter().collect::<Vec<_>>(), [0]);
    }

    /// Stored data depends on these: if one changes, events of a key end up on two partitions.
    #[test]
    fn keys_stay_on_their_partitions() {
        let partitions = Partitions::new(16).expect("in range");
        let found: Vec<u32> = ["", "a", "foobar", "order-1", "order-2", "tenant/7:cart.9"]
            .iter()
            .map(|key| partition_of(key.as_bytes(), partitions))
            .collect();
        assert_eq!(found, [5, 12, 8, 13, 4, 8]);
    }

    #[test]
    fn keys_spread_evenly() {
        let partitions = Partitions::new(64).expect("in range");
        let mut counts = vec![0_u32; 64];
        for number in 0..64_000 {
            let partition = partition_of(format!("order-{number}"), partitions);
            counts[partition as usize] += 1;
        }
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(
            least > Some(&800) && most < Some(&1200),
            "{least:?} to {most:?} of about 1000"
        );
    }
}

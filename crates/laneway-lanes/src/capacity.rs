//! How much may be under way: messages and bytes, counted together in one word.

use super::cache_padded::CachePadded;
use super::sync::{AtomicU64, Ordering};

/// An upper bound on messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// At most this many messages.
    pub messages: usize,
    /// At most this many bytes.
    pub bytes: usize,
}

impl Bound {
    /// The largest bound that can be counted: 16 million messages, one tebibyte.
    pub const MAX: Self = Self {
        messages: (1 << (64 - BYTES_BITS)) - 1,
        bytes: (1 << BYTES_BITS) - 1,
    };

    /// A bound of `messages` messages and `bytes` bytes.
    #[must_use]
    pub const fn new(messages: usize, bytes: usize) -> Self {
        Self { messages, bytes }
    }
}

const BYTES_BITS: u32 = 40;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

/// A counter that refuses to pass its [`Bound`].
///
/// Messages and bytes share one 64-bit word, so that taking room costs one atomic instruction. It is
/// a compare-and-swap and not an add that is taken back: a refused taker must never make another one
/// see a gate that is fuller than it is, because that one would then wait for a release that has
/// already happened.
///
/// What was ever taken and what was ever given back are counted apart, each modulo 2^64; what is in
/// use is the difference. So submitters and workers write to different cache lines, and a submitter
/// looks at the other one only when what it saw there last leaves no room.
#[derive(Debug)]
pub(super) struct Gate {
    taken: CachePadded<Taken>,
    freed: CachePadded<AtomicU64>,
    bound: Bound,
}

#[derive(Debug)]
struct Taken {
    all: AtomicU64,
    /// What `freed` was when a taker last looked, or less.
    freed_seen: AtomicU64,
}

impl Gate {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            taken: CachePadded(Taken {
                all: AtomicU64::new(0),
                freed_seen: AtomicU64::new(0),
            }),
            freed: CachePadded(AtomicU64::new(0)),
            bound: Bound {
                messages: bound.messages.min(Bound::MAX.messages),
                bytes: bound.bytes.min(Bound::MAX.bytes),
            },
        }
    }

    pub(super) fn bound(&self) -> Bound {
        self.bound
    }

    /// Takes room for one message of `bytes`, or says that there is none.
    pub(super) fn try_take(&self, bytes: usize) -> bool {
        let Taken { all, freed_seen } = &self.taken.0;
        // In this order: nothing is given back that was not taken before, so the difference is never
        // below zero.
        let mut freed = freed_seen.load(Ordering::SeqCst);
        let mut taken = all.load(Ordering::SeqCst);
        loop {
            let used = unpack(taken.wrapping_sub(freed));
            if used.messages >= self.bound.messages
                || bytes > self.bound.bytes.saturating_sub(used.bytes)
            {
                let now = self.freed.0.load(Ordering::SeqCst);
                if now == freed {
                    return false;
                }
                freed = now;
                freed_seen.store(freed, Ordering::SeqCst);
                taken = all.load(Ordering::SeqCst);
                continue;
            }
            let next = taken.wrapping_add(pack(Bound::new(1, bytes)));
            match all.compare_exchange_weak(taken, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(seen) => taken = seen,
            }
        }
    }

    /// Gives back what was taken. Sequentially consistent, like the waiter's registration, so that
    /// either the releaser sees the waiter or the waiter sees the room.
    pub(super) fn give_back(&self, freed: Bound) {
        if freed.messages > 0 {
            self.freed.0.fetch_add(pack(freed), Ordering::SeqCst);
        }
    }

    pub(super) fn in_use(&self) -> Bound {
        let mut freed = self.freed.0.load(Ordering::SeqCst);
        loop {
            let taken = self.taken.0.all.load(Ordering::SeqCst);
            let now = self.freed.0.load(Ordering::SeqCst);
            // The same before and after: both counts are of one moment.
            if now == freed {
                return unpack(taken.wrapping_sub(freed));
            }
            freed = now;
        }
    }
}

const fn pack(bound: Bound) -> u64 {
    (bound.messages as u64) << BYTES_BITS | bound.bytes as u64
}

/// Both halves fit a usize on the 64-bit machines we support.
const fn unpack(word: u64) -> Bound {
    Bound::new((word >> BYTES_BITS) as usize, (word & BYTES_MASK) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_refuses_at_its_message_bound_and_at_its_byte_bound() {
        let gate = Gate::new(Bound::new(2, 100));
        assert!(gate.try_take(10));
        assert!(!gate.try_take(91), "bytes");
        assert!(gate.try_take(90));
        assert!(!gate.try_take(0), "messages");
        gate.give_back(Bound::new(1, 90));
        assert_eq!(gate.in_use(), Bound::new(1, 10));
        assert!(gate.try_take(90));
    }

    #[test]
    fn bounds_survive_the_packing() {
        let gate = Gate::new(Bound::new(usize::MAX, usize::MAX));
        assert_eq!(gate.bound(), Bound::MAX);
        assert!(gate.try_take(Bound::MAX.bytes));
        assert!(!gate.try_take(1));
        assert!(gate.try_take(0));
        assert_eq!(gate.in_use(), Bound::new(2, Bound::MAX.bytes));
    }
}

//! Who owns a partition: one state machine, for the broker and for the bus.
//!
//! The broker's side of a partition is a [`Lease`](super::lease::Lease), the bus's side is a `PartitionState`. Both
//! keep an [`OwnershipCell`], and both go through the same states, the bus always behind the broker: a lease that is
//! revoked is `Draining` at once, the partition when nothing more of it is submitted to the lanes.
//!
//! | state | new attempts start | running attempts | settles and commits | other members |
//! |---|---|---|---|---|
//! | `Held` | yes | go on | yes | wait |
//! | `Draining` | no | may finish, within a bound | yes | wait |
//! | `Released` | no | are cancelled | the last commit at most | may be given it now |
//! | `Lost` | no | are cancelled | no | may own it already |
//!
//! A state only ever moves forward, and may skip states: a broker that takes a partition away without asking moves it
//! from `Held` to `Lost`, and a subscription whose lanes are empty releases what it holds without draining it again.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// Who owns a partition. See the [module](self) for what each state allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Ownership {
    /// This process owns it.
    Held,
    /// Another member is to have it: what runs may finish, nothing new starts.
    Draining,
    /// The bus has done with it, and the broker may give it to another member.
    Released,
    /// This process does not own it, and another member may.
    Lost,
}

impl Ownership {
    /// The state after a transition to `next`: `next` if that is forward, else the same state.
    pub(crate) fn advance(self, next: Self) -> Self {
        self.max(next)
    }

    /// Whether nothing of the partition may run or be settled.
    pub(crate) fn is_over(self) -> bool {
        self >= Self::Released
    }

    fn of(state: u8) -> Self {
        [Self::Held, Self::Draining, Self::Released]
            .into_iter()
            .find(|known| *known as u8 == state)
            .unwrap_or(Self::Lost)
    }
}

/// An [`Ownership`] that tasks share, and can wait for.
#[derive(Debug)]
pub(crate) struct OwnershipCell {
    state: AtomicU8,
    changed: Notify,
}

impl OwnershipCell {
    pub(crate) fn held() -> Self {
        Self {
            state: AtomicU8::new(Ownership::Held as u8),
            changed: Notify::new(),
        }
    }

    pub(crate) fn get(&self) -> Ownership {
        Ownership::of(self.state.load(Ordering::SeqCst))
    }

    /// Makes the transition of [`Ownership::advance`] as one atomic step, so of two tasks that advance it at once the
    /// further one wins; answers the state before it.
    pub(crate) fn advance(&self, next: Ownership) -> Ownership {
        let forward = |state| Some(Ownership::of(state).advance(next) as u8);
        let before = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, forward);
        self.changed.notify_waiters();
        let (Ok(before) | Err(before)) = before;
        Ownership::of(before)
    }

    /// Resolves when the state is one that `is_it` accepts.
    pub(crate) async fn wait_for(&self, is_it: impl Fn(Ownership) -> bool) -> Ownership {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // IMPORTANT: `enable` registers the waiter before the state is read, so that an `advance` in between
            // wakes it.
            changed.as_mut().enable();
            let state = self.get();
            if is_it(state) {
                return state;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ownership::{Draining, Held, Lost, Released};
    use super::*;

    const ALL: [Ownership; 4] = [Held, Draining, Released, Lost];

    #[test]
    fn ownership_only_moves_forward() {
        let after = [
            // to: Held, Draining, Released, Lost
            (Held, [Held, Draining, Released, Lost]),
            (Draining, [Draining, Draining, Released, Lost]),
            (Released, [Released, Released, Released, Lost]),
            (Lost, [Lost, Lost, Lost, Lost]),
        ];
        for (from, expected) in after {
            for (to, expected) in ALL.into_iter().zip(expected) {
                assert_eq!(from.advance(to), expected, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn a_cell_makes_the_same_transitions() {
        for from in ALL {
            for to in ALL {
                let cell = OwnershipCell::held();
                cell.advance(from);
                assert_eq!(cell.advance(to), from);
                assert_eq!(cell.get(), from.advance(to), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn only_what_is_released_or_lost_is_over() {
        assert_eq!(ALL.map(Ownership::is_over), [false, false, true, true]);
    }

    #[tokio::test]
    async fn a_waiter_sees_a_state_that_was_skipped_to() {
        let cell = std::sync::Arc::new(OwnershipCell::held());
        let waiting = tokio::spawn({
            let cell = cell.clone();
            async move { cell.wait_for(|state| state >= Draining).await }
        });
        tokio::task::yield_now().await;
        cell.advance(Lost);
        assert_eq!(waiting.await.expect("no panic"), Lost);
    }
}

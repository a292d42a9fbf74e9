//! How many bytes of payloads attempts hold at once.
//!
//! Callbacks and the bus have a [`ByteBudget`] each, so that neither starves the other. Within one, small and
//! large payloads have a half each: a hundred hosts that hang with a megabyte each take nothing from messages
//! of a few hundred bytes. The last quarter of each half is for destinations that took something quickly a
//! short while ago, so that those that hang do not stop large messages to those that answer. A destination
//! that holds large payloads already gets another one only from the first half of that half. A payload that is
//! larger than all of it goes alone.

use std::collections::VecDeque;

use super::Route;

/// Payloads up to this size are small, where the budget is large enough for many of them.
const SMALL: usize = 4 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ByteBudget {
    small: Class,
    large: Class,
    small_up_to: usize,
}

/// Payloads of about one size: what they may take, what they take, and what waits for it.
#[derive(Debug)]
struct Class {
    most: usize,
    held: usize,
    /// Destinations that were turned away, in that order: those that are known to be quick, and the others.
    quick: VecDeque<Route>,
    other: VecDeque<Route>,
}

impl Class {
    fn new(most: usize) -> Self {
        Self {
            most,
            held: 0,
            quick: VecDeque::new(),
            other: VecDeque::new(),
        }
    }

    /// Whether a payload fits beside those that are held and those that were promised to others.
    fn admits(&self, bytes: usize, is_quick: bool, promised: usize) -> bool {
        let most = if is_quick {
            self.most
        } else {
            self.most - self.most / 4
        };
        let taken = self.held + promised;
        taken == 0 || taken + bytes <= most
    }

    /// The first that waits among those that are quick, or the others, if what it waits for fits. Those before it
    /// that do not wait any more are passed.
    fn pop_fitting(
        &mut self,
        is_other: bool,
        promised: usize,
        wants: &impl Fn(Route) -> Option<(usize, bool)>,
    ) -> Option<(Route, usize)> {
        loop {
            let waiting = if is_other { &self.other } else { &self.quick };
            let &route = waiting.front()?;
            let wanted = wants(route);
            if let Some((bytes, is_quick)) = wanted
                && !self.admits(bytes, is_quick, promised)
            {
                return None;
            }
            let waiting = if is_other {
                &mut self.other
            } else {
                &mut self.quick
            };
            waiting.pop_front();
            if let Some((bytes, _)) = wanted {
                return Some((route, bytes));
            }
        }
    }
}

impl ByteBudget {
    pub(super) fn new(most: usize) -> Self {
        let half = most / 2;
        Self {
            small: Class::new(most - half),
            large: Class::new(half),
            small_up_to: SMALL.min(most / 16),
        }
    }

    pub(super) fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_up_to
    }

    fn class(&self, bytes: usize) -> &Class {
        if self.is_large(bytes) {
            &self.large
        } else {
            &self.small
        }
    }

    fn class_mut(&mut self, bytes: usize) -> &mut Class {
        if self.is_large(bytes) {
            &mut self.large
        } else {
            &mut self.small
        }
    }

    /// Whether an attempt with this payload may begin now.
    pub(super) fn admits(&self, bytes: usize, is_quick: bool) -> bool {
        self.class(bytes).admits(bytes, is_quick, 0)
    }

    /// Whether a destination that holds a large payload may have this one as well.
    pub(super) fn admits_another(&self, bytes: usize) -> bool {
        self.large.held + bytes <= self.large.most / 2
    }

    /// How many bytes one batch may have: a part of what is free, so that one topic does not take all of it.
    pub(super) fn batch(&self) -> usize {
        let free = |class: &Class| class.most.saturating_sub(class.held);
        free(&self.small).min(free(&self.large)) / 4
    }

    pub(super) fn take(&mut self, bytes: usize) {
        self.class_mut(bytes).held += bytes;
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        let class = self.class_mut(bytes);
        debug_assert!(class.held >= bytes, "more is given back than was taken");
        class.held = class.held.saturating_sub(bytes);
    }

    /// A destination waits until a payload of this size fits.
    pub(super) fn wait(&mut self, route: Route, bytes: usize, is_quick: bool) {
        let class = self.class_mut(bytes);
        if is_quick {
            class.quick.push_back(route);
        } else {
            class.other.push_back(route);
        }
    }

    /// Destinations that may go on now that a payload of a size is not held any more. `wants` tells how
    /// many bytes a destination waits for, and whether it is quick; `None` if it does not wait any more.
    pub(super) fn admit_waiting(
        &mut self,
        is_large: bool,
        wants: impl Fn(Route) -> Option<(usize, bool)>,
    ) -> Vec<Route> {
        let class = if is_large {
            &mut self.large
        } else {
            &mut self.small
        };
        let mut admitted = Vec::new();
        // What those that are woken will take: the others need not be woken in vain.
        let mut promised = 0;
        for is_other in [false, true] {
            while let Some((route, bytes)) = class.pop_fitting(is_other, promised, &wants) {
                promised += bytes;
                admitted.push(route);
            }
        }
        admitted
    }

    /// One that waits although what it waits for fits, and whether that is a large payload.
    pub(super) fn pop_fitting(
        &mut self,
        wants: impl Fn(Route, bool) -> Option<(usize, bool)>,
    ) -> Option<(Route, bool)> {
        for (class, is_large) in [(&mut self.small, false), (&mut self.large, true)] {
            for is_other in [false, true] {
                let fitting = class.pop_fitting(is_other, 0, &|route| wants(route, is_large));
                if let Some((route, _)) = fitting {
                    return Some((route, is_large));
                }
            }
        }
        None
    }

    /// What small and large payloads take.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        (self.small.held, self.large.held)
    }
}

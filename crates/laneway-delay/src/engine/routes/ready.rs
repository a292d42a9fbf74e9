//! Whose turn it is among the hosts that have something to do.

use std::collections::VecDeque;
use std::time::Duration;

use foldhash::{HashSet, HashSetExt};

use crate::Timestamp;
use crate::store::Route;

/// Hosts that have something to do, each once.
///
/// Every second turn goes to the host that became due last, the others to those that wait the longest. So a
/// crowd that is due at one moment is worked off from its front, and a host that comes later does not wait
/// until the crowd is gone.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// They became due and have had no turn since.
    fresh: VecDeque<Route>,
    /// They have had a turn and have more.
    served: VecDeque<Route>,
    turns: usize,
}

impl Ready {
    pub(super) fn push_fresh(&mut self, route: Route) {
        self.fresh.push_back(route);
    }

    pub(super) fn push_served(&mut self, route: Route) {
        self.served.push_back(route);
    }

    pub(super) fn pop(&mut self) -> Option<Route> {
        self.turns = self.turns.wrapping_add(1);
        match self.turns % 4 {
            0 | 2 => self.fresh.pop_back().or_else(|| self.served.pop_front()),
            1 => self.fresh.pop_front().or_else(|| self.served.pop_front()),
            _ => self.served.pop_front().or_else(|| self.fresh.pop_front()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.served.is_empty()
    }
}

/// For how long a quick answer counts, at least.
const COUNTS_FOR: Duration = Duration::from_mins(1);
/// How many hosts are remembered at most, twice.
const REMEMBERED: usize = 65_536;

/// Hosts that took a message quickly a short while ago.
#[derive(Debug)]
pub(super) struct Quick {
    newer: HashSet<Route>,
    older: HashSet<Route>,
    since: Timestamp,
}

impl Quick {
    pub(super) fn new() -> Self {
        Self {
            newer: HashSet::new(),
            older: HashSet::new(),
            since: Timestamp::from_millis(0),
        }
    }

    pub(super) fn note(&mut self, route: Route, now: Timestamp) {
        if now.since(self.since) >= COUNTS_FOR || self.newer.len() >= REMEMBERED {
            self.older = std::mem::take(&mut self.newer);
            self.since = now;
        }
        self.newer.insert(route);
    }

    pub(super) fn contains(&self, route: Route) -> bool {
        self.newer.contains(&route) || self.older.contains(&route)
    }
}

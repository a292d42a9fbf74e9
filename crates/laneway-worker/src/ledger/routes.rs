use std::collections::HashMap;
use std::time::Duration;

use laneway_delay::store::Route;

/// A destination is stuck when attempts run there and none has ended for this long.
const STUCK: Duration = Duration::from_secs(1);

/// So many attempts may wait for a destination that is stuck or rests; the others are handed back, so that they do not take the
/// credit of others.
pub(super) const CROWD: usize = 256;

/// How crowded destinations are.
#[derive(Debug, Default)]
pub(super) struct Routes {
    loads: HashMap<Route, RouteLoad>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RouteLoad {
    /// Attempts that were not started.
    held: usize,
    running: usize,
    /// When the last attempt ended, or the first one of those that run began.
    moved: Duration,
    /// Nothing is sent there before this.
    rests_until: Duration,
}

impl Routes {
    pub(super) fn held(&mut self, route: Route) {
        self.loads.entry(route).or_default().held += 1;
    }

    /// An attempt that was not started is gone.
    pub(super) fn left(&mut self, route: Route) {
        if let Some(load) = self.loads.get_mut(&route) {
            load.held -= 1;
        }
    }

    pub(super) fn started(&mut self, route: Route, counter: Duration) {
        let load = self.loads.entry(route).or_default();
        load.held -= 1;
        if load.running == 0 {
            load.moved = counter;
        }
        load.running += 1;
    }

    pub(super) fn ended(&mut self, route: Route, counter: Duration) {
        if let Some(load) = self.loads.get_mut(&route) {
            load.running -= 1;
            load.moved = counter;
        }
    }

    pub(super) fn rest(&mut self, route: Route, until: Duration) {
        let load = self.loads.entry(route).or_default();
        load.rests_until = load.rests_until.max(until);
    }

    /// How long it will rest; `None` if it does not.
    pub(super) fn rests(&self, route: Route, counter: Duration) -> Option<Duration> {
        let rests_until = self.loads.get(&route)?.rests_until;
        (rests_until > counter).then(|| rests_until.saturating_sub(counter))
    }

    pub(super) fn is_busy(&self, route: Route) -> bool {
        self.loads.get(&route).is_some_and(|load| load.running > 0)
    }

    /// How many too many wait for destinations that do not move. Forgets destinations with nothing to do.
    pub(super) fn excess(&mut self, counter: Duration) -> HashMap<Route, usize> {
        self.loads
            .retain(|_, load| load.held + load.running > 0 || load.rests_until > counter);
        let stands = |load: &RouteLoad| {
            let is_stuck = load.running > 0 && counter.saturating_sub(load.moved) > STUCK;
            is_stuck || load.rests_until > counter
        };
        let crowded = self.loads.iter().filter(|(_, load)| load.held > CROWD);
        crowded
            .filter(|(_, load)| stands(load))
            .map(|(route, load)| (*route, load.held - CROWD))
            .collect()
    }
}

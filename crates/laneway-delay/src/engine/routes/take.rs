//! What a turn takes of a queue, by bytes, and who looks again when some are free.

use foldhash::HashMap;

use super::budget::ByteBudget;
use super::queue::Queue;
use super::ready::Quick;
use super::{LOOKED_AT, Route, Routes};
use crate::store::Scheduled;

impl Routes {
    /// The first of a topic, as many as fit into a batch and into what batches may hold.
    pub(super) fn take_in_order(
        &mut self,
        route: Route,
        room: usize,
        is_quick: bool,
    ) -> Vec<Scheduled> {
        let Some(queue) = self.queues.get_mut(&route) else {
            return Vec::new();
        };
        let budget = &mut self.bus_bytes;
        let most = budget.batch().min(self.bounds.batch_bytes);
        let (mut count, mut bytes) = (0, 0);
        for waiting in queue.due.iter().take(room) {
            let payload = waiting.payload_bytes as usize;
            if !budget.admits(payload, is_quick) || (count > 0 && bytes + payload > most) {
                break;
            }
            budget.take(payload);
            bytes += payload;
            count += 1;
        }
        if count == 0
            && let Some(first) = queue.due.front()
        {
            let payload = first.payload_bytes as usize;
            let is_large = budget.is_large(payload);
            if queue.starved.want(is_large, payload) {
                budget.wait(route, payload, is_quick);
            }
        }
        queue.due.drain(..count).collect()
    }

    /// Those of a host whose payloads fit into what attempts may hold. One that does not fit is passed by those
    /// that do: messages to a host have no order.
    pub(super) fn take_what_fits(
        &mut self,
        route: Route,
        room: usize,
        is_quick: bool,
    ) -> Vec<Scheduled> {
        let Some(queue) = self.queues.get_mut(&route) else {
            return Vec::new();
        };
        let budget = &mut self.callback_bytes;
        // The first of each size that does not fit: the host waits for both.
        let (mut batch, mut passed, mut starved) = (Vec::new(), 0, [None; 2]);
        while batch.len() < room
            && passed < LOOKED_AT
            && let Some(waiting) = queue.due.get(passed)
        {
            let payload = waiting.payload_bytes as usize;
            let is_large = budget.is_large(payload);
            let has_share = !is_large || queue.large == 0 || budget.admits_another(payload);
            if has_share && budget.admits(payload, is_quick) {
                budget.take(payload);
                queue.large += usize::from(is_large);
                batch.extend(queue.due.remove(passed));
            } else {
                // One that has its share goes on when something of it ends.
                if has_share {
                    starved[usize::from(is_large)].get_or_insert(payload);
                }
                passed += 1;
            }
        }
        if batch.is_empty() {
            for payload in starved.into_iter().flatten() {
                let is_large = budget.is_large(payload);
                if queue.starved.want(is_large, payload) {
                    budget.wait(route, payload, is_quick);
                }
            }
        }
        batch
    }

    /// The payload of an attempt is not held any more. Answers whether others may go on.
    pub(in crate::engine) fn give_back(&mut self, waiting: &Scheduled) -> bool {
        let (route, payload) = (waiting.route, waiting.payload_bytes as usize);
        let budget = if route.is_bus() {
            &mut self.bus_bytes
        } else {
            &mut self.callback_bytes
        };
        budget.give_back(payload);
        let is_large = budget.is_large(payload);
        let (queues, quick) = (&self.queues, &self.quick);
        let admitted =
            budget.admit_waiting(is_large, |route| wanted(queues, quick, route, is_large));
        let is_one = !admitted.is_empty();
        for route in admitted {
            self.wake(route, is_large);
        }
        if let Some(queue) = self.queues.get_mut(&route)
            && is_large
        {
            queue.large = queue.large.saturating_sub(1);
            if !queue.due.is_empty() || queue.forgotten.is_some() {
                self.make_ready(route, false);
                return true;
            }
        }
        is_one
    }

    /// A destination that waited until a payload fits may look again.
    fn wake(&mut self, route: Route, is_large: bool) {
        if let Some(queue) = self.queues.get_mut(&route)
            && queue.starved.forget(is_large)
        {
            // Also if all that it had was left to the store meanwhile: then it has to be read.
            self.make_ready(route, false);
        }
    }

    /// Wakes the first destination whose payload fits although it waits: what was admitted before it did not take
    /// what it was woken for, and nothing may end for a long time. Answers whether there was one.
    pub(super) fn wake_one(&mut self) -> bool {
        // Without a slot it would take nothing, and all others would be woken behind it.
        let may_publish = self.publishing < 2 * self.bounds.publishing;
        let may_call = self.free() > self.reserve();
        let (queues, quick) = (&self.queues, &self.quick);
        let wants = |route: Route, is_large: bool| wanted(queues, quick, route, is_large);
        let budgets: [(bool, &mut ByteBudget); 2] = [
            (may_publish, &mut self.bus_bytes),
            (may_call, &mut self.callback_bytes),
        ];
        let fitting = budgets
            .into_iter()
            .filter(|(may_go, _)| *may_go)
            .find_map(|(_, budget)| budget.pop_fitting(wants));
        let Some((route, is_large)) = fitting else {
            return false;
        };
        self.wake(route, is_large);
        true
    }
}

/// How many bytes a destination waits for, and whether it is quick; `None` if it does not wait. One that rests takes
/// nothing now: nothing is promised to it, and it looks by itself when it may go on.
fn wanted(
    queues: &HashMap<Route, Queue>,
    quick: &Quick,
    route: Route,
    is_large: bool,
) -> Option<(usize, bool)> {
    let queue = queues.get(&route)?;
    let bytes = queue.starved.wants(is_large)?;
    let takes = usize::from(queue.held_until.is_none());
    Some((takes * bytes, quick.contains(route)))
}

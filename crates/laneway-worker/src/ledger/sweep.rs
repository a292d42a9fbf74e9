use std::time::Duration;

use super::{CROWDED, Ledger, handed_back};

impl Ledger {
    /// What follows from time that went by: attempts that are too late to be started, or wait behind too many others for a
    /// destination that does not move, are handed back, and outcomes are offered again that are not logged.
    pub(crate) fn sweep(&mut self, counter: Duration) {
        while let Some((deadline, serial)) = self.deadlines.first().copied()
            && deadline < counter
        {
            self.hand_back_late(serial, counter);
        }
        self.relieve(counter);
        self.offer(counter);
    }

    /// Hands back an attempt that was not started in time: the owner may have begun another one meanwhile.
    pub(super) fn hand_back_late(&mut self, serial: u64, counter: Duration) {
        let Some(entry) = self.entries.get(&serial) else {
            return;
        };
        // Where it waited for others it would only do so again.
        let busy = self.routes.is_busy(entry.route).then_some(CROWDED);
        let wait = self.routes.rests(entry.route, counter).or(busy);
        self.end(serial, handed_back(wait.unwrap_or_default()), counter);
    }

    fn relieve(&mut self, counter: Duration) {
        let mut excess = self.routes.excess(counter);
        if excess.is_empty() {
            return;
        }
        let mut back = Vec::new();
        // Those that are due last.
        for due_key in self.due_keys.iter().rev() {
            let Some(entry) = self.entries.get(&due_key.serial) else {
                continue;
            };
            if let Some(left) = excess.get_mut(&entry.route)
                && *left > 0
            {
                *left -= 1;
                back.push((due_key.serial, entry.route));
            }
        }
        for (serial, route) in back {
            let rests = self.routes.rests(route, counter).unwrap_or_default();
            self.end(serial, handed_back(rests.max(CROWDED)), counter);
        }
    }

    fn offer(&mut self, counter: Duration) {
        for serial in &self.ended {
            if let Some(entry) = self.entries.get_mut(serial)
                && counter.saturating_sub(entry.offered) >= self.bounds.offer_every
            {
                entry.offered = counter;
                self.peers.queue_at_all(*serial);
            }
        }
    }
}

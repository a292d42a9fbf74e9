//! What a worker knows of its attempts. `Attempts` of each shard decides what may start; the ledger knows the rest: where an
//! attempt is on its way, which center gave it, and who is to be told.
//!
//! | module | what it is |
//! |---|---|
//! | `entry` | one attempt |
//! | `peers` | the connections: credit, and frames that wait to be sent |
//! | `routes` | how crowded destinations are |
//! | `sweep` | what is handed back or offered again as time goes by |
//! | `tests` | without an engine and without connections |

mod entry;
mod peers;
mod routes;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use laneway_cluster::owner::Outcome;
use laneway_cluster::record::Instance;
use laneway_cluster::worker::{Attempts, Status};
use laneway_delay::store::{Claim, DueKey, Route, Scheduled};
use laneway_delay::{Message, MessageId, Target, Timestamp, Version};
use laneway_rpc::convert::{self, Asked};
use laneway_rpc::proto::{self, Ending};

use self::entry::{Entry, Key, Phase, held_bytes, truncated};
pub(crate) use self::peers::PeerId;
use self::peers::Peers;
use self::routes::Routes;
use crate::stats::{Stats, Totals};

/// For how long an attempt is handed back when this worker has no room for it, or its destination has none.
const CROWDED: Duration = Duration::from_secs(1);

/// How the ledger is bounded, and what it can serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) instance: Instance,
    pub(crate) credit: u32,
    pub(crate) held_bytes: usize,
    pub(crate) start_within: Duration,
    pub(crate) offer_every: Duration,
    pub(crate) serves_callbacks: bool,
    pub(crate) serves_bus: bool,
}

/// What became of a go.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The attempt waits for its moment.
    Held(Scheduled),
    /// It was refused, is known already, or has ended: a frame tells the center.
    No,
}

/// See the [module](self).
pub(crate) struct Ledger {
    bounds: Bounds,
    shards: BTreeMap<u32, Attempts>,
    serials: HashMap<Key, u64>,
    entries: HashMap<u64, Entry>,
    next_serial: u64,
    /// Those that wait for their moment.
    due_keys: BTreeSet<DueKey>,
    /// Those that were not started, by the time after which they must not be.
    deadlines: BTreeSet<(Duration, u64)>,
    /// Those that have ended and are not logged.
    ended: BTreeSet<u64>,
    routes: Routes,
    peers: Peers,
    running: usize,
    bytes: usize,
    totals: Totals,
    is_draining: bool,
}

impl Ledger {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            shards: BTreeMap::new(),
            serials: HashMap::new(),
            entries: HashMap::new(),
            next_serial: 1,
            due_keys: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            ended: BTreeSet::new(),
            routes: Routes::default(),
            peers: Peers::new(bounds.credit),
            running: 0,
            bytes: 0,
            totals: Totals::default(),
            is_draining: false,
        }
    }

    fn shard(&mut self, shard: u32) -> &mut Attempts {
        let instance = self.bounds.instance;
        self.shards
            .entry(shard)
            .or_insert_with(|| Attempts::new(instance))
    }

    /// A center gives the go for an attempt.
    pub(crate) fn take(
        &mut self,
        from: PeerId,
        go: proto::Go,
        now: Timestamp,
        counter: Duration,
    ) -> Taken {
        self.peers.used(from);
        let wanted = convert::attempt(&go, self.bounds.instance);
        let attempt = match wanted {
            Ok(attempt) if !self.is_draining && self.shard(go.shard).go(&attempt) => attempt,
            refused => {
                if let Err(error) = refused {
                    tracing::warn!(%error, "a go that cannot be read is refused");
                }
                self.totals.refused += 1;
                self.peers.refuse(from, &go);
                self.grant(from);
                return Taken::No;
            }
        };
        let key = (go.shard, attempt.id, attempt.attempt);
        if let Some(serial) = self.serials.get(&key) {
            // It was given before. The center may have missed how it ended.
            if self.ended.contains(serial) {
                self.peers.queue(from, *serial);
            }
            self.grant(from);
            return Taken::No;
        }
        self.unhint(go.shard, go.id.clone());
        let topic = go.topic.clone();
        let message = convert::firing(go, now);
        let route = message.as_ref().map(|message| Route::of(&message.target));
        let bytes = message.as_ref().map_or(0, held_bytes);
        let problem = match &message {
            Err(error) => Some(failed(error.to_string())),
            Ok(message) => self.objection(message, bytes),
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let due_key = DueKey {
            at: attempt.not_before,
            serial,
        };
        // `since` is nothing for a moment that is over.
        let deadline = counter
            .saturating_add(attempt.not_before.since(now))
            .saturating_add(self.bounds.start_within);
        let scheduled = Scheduled {
            due_key,
            version: Version::from_u64(serial),
            route: route.unwrap_or(Route::from_u64(0)),
            payload_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        self.totals.held(&topic);
        self.serials.insert(key.clone(), serial);
        self.entries.insert(
            serial,
            Entry {
                key,
                from,
                topic,
                message: message.ok(),
                bytes,
                route: scheduled.route,
                due_key,
                deadline,
                phase: Phase::Waiting,
                ending: None,
                offered: counter,
            },
        );
        self.due_keys.insert(due_key);
        self.deadlines.insert((deadline, serial));
        self.bytes += bytes;
        self.routes.held(scheduled.route);
        self.peers.gave(from);
        if let Some(problem) = problem {
            self.end(serial, problem, counter);
            return Taken::No;
        }
        self.grant(from);
        Taken::Held(scheduled)
    }

    /// Why an attempt ends before it begins.
    fn objection(&self, message: &Message, bytes: usize) -> Option<Ending> {
        let is_served = match &message.target {
            Target::Callback(_) => self.bounds.serves_callbacks,
            Target::Bus(_) => self.bounds.serves_bus,
            _ => false,
        };
        if !is_served {
            return Some(failed("this worker has no sink for its target".to_owned()));
        }
        // One that is larger than all that may be held goes alone.
        let has_room = self.bytes == 0 || self.bytes + bytes <= self.bounds.held_bytes;
        (!has_room).then(|| handed_back(CROWDED))
    }

    /// Those that wait from a place of the due index on, and before another.
    pub(crate) fn scan(&self, from: DueKey, until: DueKey, limit: usize) -> Vec<Scheduled> {
        if from >= until {
            return Vec::new();
        }
        let waiting = self.due_keys.range(from..until).take(limit);
        waiting
            .filter_map(|due_key| self.entries.get(&due_key.serial).map(Entry::scheduled))
            .collect()
    }

    /// The first of their places.
    pub(crate) fn floor(&self) -> DueKey {
        self.due_keys.first().copied().unwrap_or(DueKey::FIRST)
    }

    /// Gives attempts whose moment has come to the engine. They are not started by that.
    pub(crate) fn claim(
        &mut self,
        due: &[Scheduled],
        now: Timestamp,
        counter: Duration,
    ) -> Vec<Claim> {
        let mut claims = Vec::with_capacity(due.len());
        for waiting in due {
            let serial = waiting.due_key.serial;
            let Some(entry) = self.entries.get_mut(&serial) else {
                continue;
            };
            if entry.phase != Phase::Waiting || entry.due_key.at > now {
                continue;
            }
            if counter > entry.deadline {
                self.hand_back_late(serial, counter);
                continue;
            }
            let Some(message) = entry.claim(now) else {
                continue;
            };
            self.due_keys.remove(&waiting.due_key);
            claims.push(Claim {
                due_key: waiting.due_key,
                before: waiting.version,
                message: Arc::new(message),
            });
        }
        claims
    }

    /// Starts an attempt. `false`: it must not be started, and the owner is told so if it does not know.
    pub(crate) fn begin(&mut self, serial: u64, counter: Duration) -> bool {
        let Some(entry) = self.entries.get_mut(&serial) else {
            return false;
        };
        if entry.phase != Phase::Claimed {
            return false;
        }
        if counter > entry.deadline {
            self.hand_back_late(serial, counter);
            return false;
        }
        let (shard, id, attempt) = &entry.key;
        let attempts = self.shards.get_mut(shard);
        if attempts.is_none_or(|attempts| attempts.start(id, *attempt).is_none()) {
            return false;
        }
        entry.phase = Phase::Runs;
        self.deadlines.remove(&(entry.deadline, serial));
        self.routes.started(entry.route, counter);
        self.running += 1;
        self.totals.started(&entry.topic);
        true
    }

    /// An attempt has ended, or is not started any more.
    pub(crate) fn end(&mut self, serial: u64, ending: Ending, counter: Duration) {
        let Some(entry) = self.entries.get_mut(&serial) else {
            return;
        };
        if entry.phase == Phase::Ended {
            return;
        }
        let ending = truncated(ending);
        // The type that `Attempts` keeps. Without a known one only this is certain.
        let outcome = Outcome::try_from(ending.clone()).unwrap_or(Outcome::Unknown);
        let (shard, id, attempt) = &entry.key;
        if let Some(attempts) = self.shards.get_mut(shard) {
            // One that was not started is started, as far as the fence knows, and ends without having been sent: so it
            // is kept until an owner has logged that.
            if entry.phase != Phase::Runs {
                attempts.start(id, *attempt);
            }
            attempts.ended(id, *attempt, outcome.clone());
        }
        self.leave(serial, counter);
        let Some(entry) = self.entries.get_mut(&serial) else {
            return;
        };
        self.totals.ended(&entry.topic, &outcome);
        entry.phase = Phase::Ended;
        entry.message = None;
        entry.ending = Some(ending);
        entry.offered = counter;
        self.ended.insert(serial);
        self.peers.queue_at_its_center(entry.from, serial);
        self.grant_all();
    }

    /// An attempt neither waits nor runs any more.
    fn leave(&mut self, serial: u64, counter: Duration) {
        let Some(entry) = self.entries.get_mut(&serial) else {
            return;
        };
        match entry.phase {
            Phase::Ended => return,
            Phase::Waiting | Phase::Claimed => {
                self.due_keys.remove(&entry.due_key);
                self.deadlines.remove(&(entry.deadline, serial));
                self.routes.left(entry.route);
            }
            Phase::Runs => {
                self.running -= 1;
                self.routes.ended(entry.route, counter);
            }
        }
        self.bytes -= std::mem::take(&mut entry.bytes);
    }

    /// A destination takes nothing for a while.
    pub(crate) fn rest(&mut self, serial: u64, wait: Duration, counter: Duration) {
        if let Some(entry) = self.entries.get(&serial) {
            self.routes.rest(entry.route, counter.saturating_add(wait));
        }
    }

    /// The owner asks what became of an attempt.
    pub(crate) fn ask(&mut self, from: PeerId, asked: Asked, counter: Duration) {
        let status = self
            .shard(asked.shard)
            .ask(asked.epoch, &asked.id, asked.attempt);
        let is_disclaimed = status == Status::Disclaimed;
        self.peers.answer(from, convert::status(&asked, status));
        if is_disclaimed {
            self.forget(&(asked.shard, asked.id, asked.attempt), counter);
        }
    }

    /// The outcome of an attempt is in the log.
    pub(crate) fn logged(&mut self, shard: u32, id: MessageId, attempt: u32, counter: Duration) {
        if let Some(attempts) = self.shards.get_mut(&shard) {
            attempts.logged(&id, attempt);
        }
        let key = (shard, id, attempt);
        let serial = self.serials.get(&key);
        if serial.is_some_and(|serial| self.ended.contains(serial)) {
            self.forget(&key, counter);
        }
    }

    fn forget(&mut self, key: &Key, counter: Duration) {
        let Some(serial) = self.serials.remove(key) else {
            return;
        };
        self.leave(serial, counter);
        self.ended.remove(&serial);
        if let Some(entry) = self.entries.remove(&serial) {
            self.peers.forgot(entry.from, serial);
            self.grant_all();
        }
    }

    /// Takes no more gos, and hands back what has not started.
    pub(crate) fn drain(&mut self, counter: Duration) {
        self.is_draining = true;
        let held: Vec<u64> = self.deadlines.iter().map(|(_, serial)| *serial).collect();
        for serial in held {
            self.end(serial, handed_back(Duration::ZERO), counter);
        }
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Attempts that wait for their moment.
    pub(crate) fn held(&self) -> usize {
        self.deadlines.len()
    }

    /// Attempts that run, and outcomes that are not logged.
    pub(crate) fn open(&self) -> (usize, usize) {
        (self.running, self.ended.len())
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            held: self.deadlines.len(),
            running: self.running,
            unlogged: self.ended.len(),
            held_bytes: self.bytes,
            hints: self.peers.hints(),
            connections: self.peers.count(),
            is_draining: self.is_draining,
            ..self.totals.stats()
        }
    }
}

fn failed(reason: String) -> Ending {
    Outcome::Failed {
        reason,
        after: Duration::ZERO,
        is_final: false,
    }
    .into()
}

pub(crate) fn handed_back(wait: Duration) -> Ending {
    Outcome::HandedBack { wait }.into()
}

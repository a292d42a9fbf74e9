use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use laneway_rpc::proto::{self, ToCenter, to_center::Frame};
use tokio::sync::Notify;

use super::Ledger;

/// Names a connection.
pub(crate) type PeerId = u64;

/// The most frames that wait for a center that does not read, apart from outcomes.
const MOST_REPLIES: usize = 65_536;

/// The most hints that are remembered.
const MOST_HINTS: usize = 131_072;

/// The connections to centers.
pub(super) struct Peers {
    credit: u32,
    next: PeerId,
    open: BTreeMap<PeerId, Peer>,
    /// Attempts of connections that are gone.
    orphans: u32,
    /// Version and due time by shard and message, for figures, with the connection that gave them.
    hints: HashMap<(u32, String), (PeerId, u64, u64)>,
}

struct Peer {
    wake: Arc<Notify>,
    /// What it may still send.
    unused: u32,
    /// Its attempts that are not forgotten.
    given: u32,
    replies: VecDeque<Frame>,
    /// Attempts whose outcomes are to be sent, in the order in which they came.
    outcomes: BTreeSet<u64>,
    is_flooded: bool,
}

impl Peers {
    pub(super) fn new(credit: u32) -> Self {
        Self {
            credit,
            next: 1,
            open: BTreeMap::new(),
            orphans: 0,
            hints: HashMap::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    pub(super) fn hints(&self) -> usize {
        self.hints.len()
    }

    /// A go or a hint came.
    pub(super) fn used(&mut self, peer: PeerId) {
        if let Some(peer) = self.open.get_mut(&peer) {
            peer.unused = peer.unused.saturating_sub(1);
        }
    }

    /// A go was taken.
    pub(super) fn gave(&mut self, peer: PeerId) {
        if let Some(peer) = self.open.get_mut(&peer) {
            peer.given += 1;
        } else {
            self.orphans += 1;
        }
    }

    /// An attempt is forgotten.
    pub(super) fn forgot(&mut self, from: PeerId, serial: u64) {
        for peer in self.open.values_mut() {
            peer.outcomes.remove(&serial);
        }
        match self.open.get_mut(&from) {
            Some(peer) => peer.given = peer.given.saturating_sub(1),
            None => self.orphans = self.orphans.saturating_sub(1),
        }
    }

    fn reply(&mut self, peer: PeerId, frame: Frame) {
        if let Some(peer) = self.open.get_mut(&peer) {
            if peer.replies.len() >= MOST_REPLIES {
                peer.is_flooded = true;
            } else {
                peer.replies.push_back(frame);
            }
            peer.wake.notify_one();
        }
    }

    pub(super) fn refuse(&mut self, peer: PeerId, go: &proto::Go) {
        let refused = proto::Refused {
            shard: go.shard,
            epoch: go.epoch,
            id: go.id.clone(),
            attempt: go.attempt,
        };
        self.reply(peer, Frame::Refused(refused));
    }

    pub(super) fn answer(&mut self, peer: PeerId, status: proto::Status) {
        self.reply(peer, Frame::Status(status));
    }

    /// An outcome goes to one center.
    pub(super) fn queue(&mut self, peer: PeerId, serial: u64) {
        if let Some(peer) = self.open.get_mut(&peer) {
            peer.outcomes.insert(serial);
            peer.wake.notify_one();
        }
    }

    /// An outcome goes to all centers: which one owns the shard is not known here.
    pub(super) fn queue_at_all(&mut self, serial: u64) {
        for peer in self.open.values_mut() {
            peer.outcomes.insert(serial);
            peer.wake.notify_one();
        }
    }

    /// An outcome goes to the center that gave the attempt, or to all if that is gone.
    pub(super) fn queue_at_its_center(&mut self, from: PeerId, serial: u64) {
        if self.open.contains_key(&from) {
            self.queue(from, serial);
        } else {
            self.queue_at_all(serial);
        }
    }

    /// Grants what is used up, many at once.
    fn grant(&mut self, id: PeerId) {
        // What is left over of connections that are gone leaves room for the others, too.
        let orphans = self.orphans.min(self.credit / 2);
        let Some(peer) = self.open.get_mut(&id) else {
            return;
        };
        let taken = peer.unused.saturating_add(peer.given);
        let more = self.credit.saturating_sub(taken.saturating_add(orphans));
        if more == 0 || (more < self.credit / 8 && peer.unused > 0) {
            return;
        }
        peer.unused += more;
        self.reply(id, Frame::Credit(proto::Credit { more }));
    }
}

impl Ledger {
    /// There is another connection. Its task is woken when there are frames for it: credit, and every outcome that is not
    /// logged.
    pub(crate) fn open_peer(&mut self, wake: Arc<Notify>) -> PeerId {
        let id = self.peers.next;
        self.peers.next += 1;
        let peer = Peer {
            wake,
            unused: 0,
            given: 0,
            replies: VecDeque::new(),
            outcomes: self.ended.clone(),
            is_flooded: false,
        };
        peer.wake.notify_one();
        self.peers.open.insert(id, peer);
        self.grant(id);
        id
    }

    /// A connection is gone. Its attempts go on, and their outcomes are kept.
    pub(crate) fn close_peer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.open.remove(&id) {
            self.peers.orphans += peer.given;
        }
        self.peers.hints.retain(|_, (from, ..)| *from != id);
    }

    /// The next frames for a center. `None`: it does not read what it is sent, and sends on.
    pub(crate) fn frames(&mut self, id: PeerId, most: usize) -> Option<Vec<ToCenter>> {
        let peer = self.peers.open.get_mut(&id)?;
        if peer.is_flooded {
            return None;
        }
        let count = peer.replies.len().min(most);
        let mut frames: Vec<Frame> = peer.replies.drain(..count).collect();
        while frames.len() < most
            && let Some(serial) = peer.outcomes.pop_first()
        {
            let entry = self.entries.get(&serial);
            if let Some(entry) = entry
                && let Some(ending) = &entry.ending
            {
                let (shard, id, attempt) = &entry.key;
                let ending = ending.clone();
                let outcome = laneway_rpc::convert::outcome(*shard, id, *attempt, ending);
                frames.push(Frame::Outcome(outcome));
            }
        }
        let frame = |frame| ToCenter { frame: Some(frame) };
        Some(frames.into_iter().map(frame).collect())
    }

    /// Answers a ping.
    pub(crate) fn pong(&mut self, id: PeerId, pong: proto::Pong) {
        let (running, unlogged) = self.open();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let pong = proto::Pong {
            held: count(self.held()),
            unsettled: count(running.saturating_add(unlogged)),
            is_draining: self.is_draining,
            ..pong
        };
        self.peers.reply(id, Frame::Pong(pong));
    }

    /// Remembers a hint.
    pub(crate) fn hint(&mut self, from: PeerId, hint: proto::Hint) {
        self.peers.used(from);
        let hints = &mut self.peers.hints;
        let key = (hint.shard, hint.id);
        if hints.len() < MOST_HINTS || hints.contains_key(&key) {
            hints.insert(key, (from, hint.version, hint.due_ms));
        }
        self.grant(from);
    }

    /// Forgets a hint.
    pub(crate) fn unhint(&mut self, shard: u32, id: String) {
        self.peers.hints.remove(&(shard, id));
    }

    /// Grants a center the credit that it may have.
    pub(super) fn grant(&mut self, id: PeerId) {
        if !self.is_draining && self.bytes <= self.bounds.held_bytes {
            self.peers.grant(id);
        }
    }

    pub(super) fn grant_all(&mut self) {
        if self.is_draining || self.bytes > self.bounds.held_bytes {
            return;
        }
        let all: Vec<PeerId> = self.peers.open.keys().copied().collect();
        for id in all {
            self.peers.grant(id);
        }
    }
}

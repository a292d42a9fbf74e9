//! A member of a group: it sends heartbeats, watches its peers, and takes its share of the partitions.
//!
//! # Ownership, leases and takeover
//!
//! A [`Membership`] has an entry in the bucket of members. [`Membership::heartbeat`] changes it every third of a lease,
//! each time by a compare-and-set on the last revision. The leases of its partitions are valid until one lease after
//! the moment **before** it sent the last heartbeat that went through.
//!
//! [`Membership::evict_silent`] of another member removes the entry when it saw no change of it for a lease and a
//! margin, by its own clock, by a compare-and-set on the revision that it saw. If that goes through, no later heartbeat
//! of the silent member does; and since the last one was sent before it was seen, the leases of the silent member had
//! ended before its entry was removed. Only then does [`Membership::take`] take its partitions, each by a
//! compare-and-set on its record. Nothing here compares the clocks of two machines: they only have to run at about the
//! same speed.
//!
//! A member whose entry is gone has lost all its partitions, and joins again as a new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::kv::Watch;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::assignment::{OwnedPartition, PartitionAssignment};
use super::bucket::Unchanged;
use super::connect::ANSWER_WITHIN;
use super::ledger::AT_ONCE;
use super::names;
use super::peers::{self, Peers};
use super::rebalance::{self, Holder};
use super::record::{self, GroupRecord};
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::member::{Assignments, GroupMember};
use crate::broker::{BrokerError, Start};
use crate::settle::Position;
use crate::topic::TopicName;

/// After a call that failed.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// A group at a topic, as this process takes part in it.
struct Group {
    server: Arc<Nats>,
    topic: TopicName,
    name: String,
    assignments: Assignments,
}

impl Group {
    fn lease(&self) -> Duration {
        self.server.options.session_or_default()
    }

    /// Waits until a member with another lease has been silent for too long, and evicts it. If it is alive, that is an
    /// error.
    async fn outlive(
        &self,
        (id, revision, theirs): (String, u64, Duration),
    ) -> Result<(), BrokerError> {
        sleep(peers::silence(theirs)).await;
        let key = names::member_key(&self.topic, &self.name, &id);
        let entry = self.server.members.read(&key).await;
        let entry = entry.map_err(|error| self.server.failed_with(error))?;
        let is_gone = entry.value.is_none()
            || entry.revision == revision
                && self.server.members.remove(&key, revision).await.is_ok();
        if is_gone {
            return Ok(());
        }
        Err(BrokerError::OtherSession {
            topic: self.topic.clone(),
            group: self.name.clone(),
            ours: self.lease(),
            theirs,
        })
    }
}

/// One membership, from joining until it leaves or is evicted.
struct Membership {
    group: Arc<Group>,
    id: String,
    key: String,
    revision: Mutex<u64>,
    valid_until: Mutex<Instant>,
    held: Mutex<BTreeMap<u32, Arc<OwnedPartition>>>,
    /// What is held has changed: the peers should know, and the shares may be uneven.
    changed: Arc<Notify>,
    /// The next heartbeat is due now: the peers should know what is held.
    tell: Notify,
}

/// Why a membership is over.
struct Evicted;

impl Membership {
    /// Becomes a member.
    async fn enter(group: Arc<Group>) -> Result<Self, BrokerError> {
        let id = Uuid::now_v7().simple().to_string();
        let key = names::member_key(&group.topic, &group.name, &id);
        let sent = Instant::now();
        let nothing = describe("", &BTreeMap::new());
        let nothing = peers::encode(&group.name, group.lease(), nothing);
        let writing = group.server.members.write(&key, nothing, 0).await;
        let revision = writing.map_err(|unchanged| match unchanged {
            Unchanged::Conflict => group.server.failed("joining", "the id is taken"),
            Unchanged::Unknown(error) => group.server.failed_with(error),
        })?;
        Ok(Self {
            valid_until: Mutex::new(sent + group.lease()),
            group,
            id,
            key,
            revision: Mutex::new(revision),
            held: Mutex::default(),
            changed: Arc::default(),
            tell: Notify::new(),
        })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<OwnedPartition>>> {
        self.held.lock()
    }

    fn is_valid(&self) -> bool {
        Instant::now() < *self.valid_until.lock()
    }

    /// Sends heartbeats, until the entry of the member is gone.
    async fn heartbeat(&self) -> Evicted {
        let every = self.group.lease() / 3;
        let server = &self.group.server;
        loop {
            if server.client.connection_state() == State::Connected {
                let sent = Instant::now();
                let held = describe(&self.id, &self.held());
                let value = peers::encode(&self.group.name, self.group.lease(), held);
                let revision = *self.revision.lock();
                let writing = server.members.write(&self.key, value, revision);
                match timeout(every, writing).await {
                    Ok(Ok(revision)) => {
                        *self.revision.lock() = revision;
                        self.confirmed(sent + self.group.lease());
                        tokio::select! {
                            () = sleep(every.saturating_sub(sent.elapsed())) => {}
                            () = self.tell.notified() => {}
                        }
                        continue;
                    }
                    // This heartbeat, or an earlier one, may have gone through after all.
                    Ok(Err(_)) | Err(_) => {
                        if let Ok(Ok(entry)) = timeout(every, server.members.read(&self.key)).await
                        {
                            if entry.value.is_none() {
                                return Evicted;
                            }
                            *self.revision.lock() = entry.revision;
                        }
                    }
                }
            }
            sleep((every / 10).min(TRY_AGAIN)).await;
        }
    }

    fn confirmed(&self, valid_until: Instant) {
        *self.valid_until.lock() = valid_until;
        for owned in self.held().values() {
            owned.lease.extend(valid_until);
        }
    }

    /// Watches the peers and keeps to the plan, for ever.
    async fn rebalance(&self, mut peers: Peers, mut watch: Watch) {
        let lease = self.group.lease();
        loop {
            let wait = peers.next_silent(lease).unwrap_or(lease);
            tokio::select! {
                entry = watch.next() => match entry {
                    Some(Ok(entry)) => {
                        peers.note_entry(&self.id, &entry);
                        while let Some(Some(Ok(entry))) = watch.next().now_or_never() {
                            peers.note_entry(&self.id, &entry);
                        }
                    }
                    // The watch reports that it was idle for long, and goes on.
                    Some(Err(error)) => tracing::debug!(%error, "watching group"),
                    None => match self.group.server.members.watch(&self.pattern()).await {
                        Ok(again) => watch = again,
                        Err(_) => sleep(TRY_AGAIN).await,
                    },
                },
                () = self.changed.notified() => {}
                () = sleep(wait.max(Duration::from_millis(10))) => {}
            }
            self.finish_releasing().await;
            self.evict_silent(&mut peers).await;
            if let Err(error) = self.rebalance_once(&peers).await {
                if let Some(suppressed) = self.group.server.limiter.allow("rebalance") {
                    tracing::warn!(topic = %self.group.topic, group = self.group.name, %error, suppressed,
                        "rebalance failed, retrying");
                }
                sleep(TRY_AGAIN).await;
                self.changed.notify_one();
            }
        }
    }

    fn pattern(&self) -> String {
        names::members_of_group(&self.group.topic, &self.group.name)
    }

    /// The peers as they are now, and a watch of what changes from then on.
    async fn watch_peers(&self) -> Result<(Peers, Watch), BrokerError> {
        let server = &self.group.server;
        let looking = async {
            let mut peers = Peers::default();
            let mut watch = server.members.watch(&self.pattern()).await?;
            // Our own entry is among them, so there is a last one.
            while let Some(entry) = watch.next().await {
                let entry = entry
                    .map_err(|error| super::error::NatsError::new("watching a group", error))?;
                peers.note_entry(&self.id, &entry);
                if entry.delta == 0 {
                    break;
                }
            }
            Ok((peers, watch))
        };
        match timeout(ANSWER_WITHIN, looking).await {
            Ok(result) => result.map_err(|error| server.failed_with(error)),
            Err(_) => Err(server.failed("watching a group", "timed out")),
        }
    }

    /// Evicts members that were silent for too long. Their partitions can be taken then.
    async fn evict_silent(&self, peers: &mut Peers) {
        if !self.is_valid() {
            // This process may be the one that was cut off.
            return;
        }
        let members = &self.group.server.members;
        for (id, revision) in peers.silent_for(self.group.lease()) {
            let key = names::member_key(&self.group.topic, &self.group.name, &id);
            match members.remove(&key, revision).await {
                Ok(()) => {
                    tracing::info!(topic = %self.group.topic, group = self.group.name, member = id,
                        "evicted a member without heartbeats; its partitions are rebalanced");
                    peers.forget(&id);
                }
                // It has sent a heartbeat after all, or another member has evicted it.
                Err(_) => {
                    if let Ok(entry) = members.read(&key).await {
                        peers.note(&id, entry.value.as_ref(), entry.revision);
                    }
                }
            }
        }
    }

    /// Forgets what is lost, and disowns what the bus has released without waiting for the server.
    async fn finish_releasing(&self) {
        let leaving: Vec<_> = {
            let mut held = self.held();
            let before = held.len();
            held.retain(|_, owned| !owned.is_lost());
            if held.len() != before {
                self.tell.notify_one();
            }
            held.values()
                .filter(|owned| owned.is_released())
                .cloned()
                .collect()
        };
        for owned in leaving {
            if owned.disown().await.is_ok() {
                self.held().remove(&owned.partition);
                self.tell.notify_one();
            }
        }
    }

    /// Takes and revokes partitions as the plan says.
    async fn rebalance_once(&self, peers: &Peers) -> Result<(), BrokerError> {
        if !self.is_valid() {
            return Ok(());
        }
        let server = &self.group.server;
        let known = server.handle(&self.group.topic).await?;
        let mut members: Vec<Holder> = peers.holders().collect();
        members.push(describe(&self.id, &self.held()));
        let plan = rebalance::plan(&self.id, &members, known.topic.partitions().get());
        if !plan.release.is_empty() {
            for number in plan.release {
                if let Some(owned) = self.held().get(&number) {
                    owned.lease.revoke();
                }
            }
            self.tell.notify_one();
        }
        if plan.take.is_empty() {
            return Ok(());
        }
        let handle = server.fresh_handle(&self.group.topic).await?;
        let Some(info) = server.stream_info(&handle.stream).await? else {
            return Err(BrokerError::UnknownTopic(self.group.topic.clone()));
        };
        let last = info.state.last_sequence;
        let taking = plan.take.into_iter().map(|partition| {
            let handle = handle.clone();
            async move { self.take(handle, last, partition, peers).await }
        });
        let mut taking = stream::iter(taking).buffered(AT_ONCE);
        let mut result = Ok(());
        while let Some(taken) = taking.next().await {
            match taken {
                Ok(Some(assignment)) => {
                    self.held()
                        .insert(assignment.owned.partition, assignment.owned.clone());
                    // If the receiver is gone, so is the `GroupMember`, and this task ends soon.
                    let _ = self.group.assignments.send(Ok(Arc::new(assignment)));
                }
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
        }
        self.tell.notify_one();
        result
    }

    /// Takes a partition, unless its owner is alive.
    async fn take(
        &self,
        handle: Arc<TopicHandle>,
        last: u64,
        partition: u32,
        peers: &Peers,
    ) -> Result<Option<PartitionAssignment>, BrokerError> {
        let group = &self.group;
        let server = &group.server;
        let (before, revision) = server.group_record(&handle, &group.name, partition).await?;
        let (owner, epoch, position) = match before {
            None => {
                let start = server.group_start(&handle, &group.name).await?;
                (None, 0, Position::at(start))
            }
            Some(record) => {
                let position = record.position_in(handle.born, last);
                (record.owner, record.epoch, position)
            }
        };
        if let Some(owner) = owner.filter(|owner| *owner != self.id)
            && (peers.knows(&owner) || self.is_there(&owner).await?)
        {
            return Ok(None);
        }
        let taken = GroupRecord {
            owner: Some(self.id.clone()),
            epoch: epoch + 1,
            born: handle.born,
            position,
        };
        let key = names::position_key(&group.topic, &group.name, partition);
        let revision = match server.groups.write(&key, taken.encode(), revision).await {
            Ok(revision) => revision,
            Err(Unchanged::Conflict) => return Ok(None),
            // If it went through, the record names this member, which takes it by the next plan.
            Err(Unchanged::Unknown(error)) => return Err(server.failed_with(error)),
        };
        let partition = OwnedPartition::new(
            server.clone(),
            handle,
            group.name.clone(),
            partition,
            &taken,
            revision,
            *self.valid_until.lock(),
            self.changed.clone(),
        );
        Ok(Some(PartitionAssignment {
            owned: Arc::new(partition),
            position: taken.position,
        }))
    }

    /// Whether a member exists that the watch has not reported yet.
    async fn is_there(&self, id: &str) -> Result<bool, BrokerError> {
        let server = &self.group.server;
        let key = names::member_key(&self.group.topic, &self.group.name, id);
        let entry = server.members.read(&key).await;
        Ok(entry
            .map_err(|error| server.failed_with(error))?
            .value
            .is_some())
    }

    /// Loses all partitions.
    fn lose_all(&self) {
        for owned in std::mem::take(&mut *self.held()).into_values() {
            owned.lose();
        }
    }

    /// Leaves, so that the peers need not wait for a lease.
    async fn leave(&self) {
        let held: Vec<_> = self.held().values().cloned().collect();
        for owned in held {
            owned.lose();
        }
        let members = &self.group.server.members;
        for _ in 0..3 {
            let revision = *self.revision.lock();
            if members.remove(&self.key, revision).await.is_ok() {
                return;
            }
            match members.read(&self.key).await {
                Ok(entry) if entry.value.is_some() => *self.revision.lock() = entry.revision,
                _ => return,
            }
        }
    }
}

fn describe(id: &str, held: &BTreeMap<u32, Arc<OwnedPartition>>) -> Holder {
    let leaving = held.values().filter(|owned| owned.is_leaving());
    Holder {
        id: id.to_owned(),
        leaving: leaving.map(|owned| owned.partition).collect(),
        held: held.keys().copied().collect(),
    }
}

/// Joins a group, and takes of its share what is free.
pub(super) async fn join(
    server: Arc<Nats>,
    topic: &TopicName,
    group: &str,
    start: Start,
) -> Result<GroupMember, BrokerError> {
    let guard = crate::broker::subscribe_once(&server.subscriptions, topic, group)?;
    let (sender, assignments) = mpsc::unbounded_channel();
    let handle = server.fresh_handle(topic).await?;
    let group = Arc::new(Group {
        server,
        topic: topic.clone(),
        name: group.to_owned(),
        assignments: sender,
    });
    group.note_start(&handle, start).await?;
    let (membership, peers, watch) = enter(&group).await?;
    membership.rebalance_once(&peers).await?;
    Ok(GroupMember::begin(assignments, guard, |left| {
        live(group, membership, peers, watch, left)
    }))
}

/// Becomes a member, unless peers have another lease: they would evict this one too early.
///
/// Only a member that joins is checked. One that was evicted and joins again while the lease is being changed is let
/// in, and that is safe, too: a member is evicted by the lease in its own entry.
async fn enter(group: &Arc<Group>) -> Result<(Membership, Peers, Watch), BrokerError> {
    let options = &group.server.options;
    let mut leases = vec![options.session_or_default()];
    leases.extend(options.broker.session_before);
    loop {
        let membership = Membership::enter(group.clone()).await?;
        let (peers, watch) = membership.watch_peers().await?;
        let Some(other) = peers.with_other_lease(&leases) else {
            return Ok((membership, peers, watch));
        };
        membership.leave().await;
        group.outlive(other).await?;
    }
}

/// Is a member until it is to leave, and joins again when it was evicted.
async fn live(
    group: Arc<Group>,
    mut membership: Membership,
    mut peers: Peers,
    mut watch: Watch,
    mut leave: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            biased;
            _ = &mut leave => {
                membership.leave().await;
                return;
            }
            Evicted = membership.heartbeat() => {}
            () = membership.rebalance(peers, watch) => {}
        }
        tracing::warn!(topic = %group.topic, group = group.name,
            "evicted for missing heartbeats, rejoining");
        membership.lose_all();
        (membership, peers, watch) = loop {
            let entering = async {
                let membership = Membership::enter(group.clone()).await?;
                let (peers, watch) = membership.watch_peers().await?;
                Ok::<_, BrokerError>((membership, peers, watch))
            };
            tokio::select! {
                biased;
                _ = &mut leave => return,
                entered = entering => match entered {
                    Ok(entered) => break entered,
                    Err(error) => {
                        if let Some(suppressed) = group.server.limiter.allow("join") {
                            tracing::warn!(topic = %group.topic, group = group.name, %error, suppressed,
                                "joining group failed, retrying");
                        }
                        sleep(TRY_AGAIN).await;
                    }
                },
            }
        };
        // So that it plans at once.
        membership.changed.notify_one();
    }
}

impl Group {
    /// Notes where the group starts in partitions that it has not read, so that [`Start::Latest`] means the same
    /// later. One entry for all of them: a member that dies meanwhile has noted it for all or for none.
    async fn note_start(&self, handle: &TopicHandle, start: Start) -> Result<(), BrokerError> {
        if start == Start::Earliest {
            return Ok(());
        }
        let server = &self.server;
        let (noted, revision) = server.noted_start(handle, &self.name).await?;
        if noted.is_some() {
            return Ok(());
        }
        let reading = handle
            .topic
            .partitions()
            .iter()
            .map(|partition| async move {
                let (record, _) = server.group_record(handle, &self.name, partition).await?;
                Ok::<_, BrokerError>(record.is_some_and(|record| record.born == handle.born))
            });
        let known: Vec<_> = stream::iter(reading)
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        // To a group that has read before, a partition without a position is a new one.
        if known.contains(&true) {
            return Ok(());
        }
        let info = server.stream_info(&handle.stream).await?;
        let end = info.map_or(0, |info| info.state.last_sequence) + 1;
        let key = names::start_key(handle.topic.name(), &self.name);
        let value = record::encode_start(handle.born, end);
        match server.groups.write(&key, value, revision).await {
            // Another member has noted it at the same moment.
            Ok(_) | Err(Unchanged::Conflict) => Ok(()),
            Err(Unchanged::Unknown(error)) => Err(server.failed_with(error)),
        }
    }
}

//! A member of a group: takes over what a rebalance assigns to it, and releases what it revokes.
//!
//! # Ownership and rebalance
//!
//! The coordinator of the group decides. It assigns a partition to another member only when its owner has released it,
//! or has been silent for a session. The client reports a rebalance while it is polled; [`Membership::follow`] acts on
//! it outside of the callback. For a revoked partition it revokes the lease; the bus drains it, commits and releases
//! it. When all revoked partitions are released, and none of their commits is under way any more,
//! [`Membership::settle_changes`] unassigns them. Partitions that are lost are dropped, and nothing of them is
//! committed.
//!
//! # For how long a lease is valid
//!
//! The client reports nothing of its heartbeats. But the coordinator refuses the commits of a client that is no member,
//! and counts a commit as a sign of life. So after a commit that was sent at *s* and went through, it assigns the
//! partitions of this member to no other before *s* and a session. See `ARCHITECTURE.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataBroker;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{interval, interval_at, sleep, timeout};

use super::assignment::{Fetched, OwnedPartition};
use super::client::{self, ANSWER_WITHIN};
use super::cluster::blocking;
use super::commits::{Commits, Session};
use super::consumer::{self, Change, Client, Consumer};
use super::ledger::{committed, edges, list};
use super::mark::Mark;
use super::options::KafkaProtocol;
use super::server::Kafka;
use super::takeover::Takeover;
use super::topics::TopicHandle;
use crate::broker::member::{Assignments, GroupMember};
use crate::broker::{BrokerError, Start};
use crate::planted::planted;
use crate::topic::TopicName;

/// Partitions that are given together are looked up together, unless that takes longer.
const FOUND_WITHIN: Duration = Duration::from_secs(2);

/// How often it is looked whether the topic is still the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the catalog learns where the group is, in case Kafka forgets it.
const REMEMBER_EVERY: Duration = Duration::from_mins(10);

/// A member that leaves has the catalog remember its positions, unless that takes longer.
const REMEMBERED_WITHIN: Duration = Duration::from_secs(2);

/// Joining takes no longer, if no other member has to be waited for.
const JOINED_WITHIN: Duration = Duration::from_secs(2);

/// One that has not joined by then is probably waiting for a member that was killed.
const USUALLY_JOINED_WITHIN: Duration = Duration::from_secs(5);

/// If it still has not, that is said once more.
const SAID_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// A client that cannot go on is replaced by another after this long.
const JOIN_AGAIN: Duration = Duration::from_secs(1);

/// How long a member may be silent unless its broker says otherwise, for groups that the broker manages.
const SESSION_OF_BROKER: Duration = Duration::from_secs(45);
/// How often it sends a heartbeat.
const HEARTBEAT_OF_BROKER: Duration = Duration::from_secs(5);

type Changes = mpsc::UnboundedReceiver<Change>;

/// A group at a topic, as this process takes part in it.
struct Group {
    server: Arc<Kafka>,
    handle: Arc<TopicHandle>,
    /// What its users call it.
    called: String,
    /// What it is called on the cluster.
    name: String,
    session: Session,
    /// Where it was when we joined, as the catalog remembers.
    lows: Arc<BTreeMap<u32, u64>>,
    assignments: Assignments,
}

/// Joins a group. What it gets comes when the group has agreed.
pub(super) async fn join(
    server: Arc<Kafka>,
    topic: &TopicName,
    group: &str,
    start: Start,
) -> Result<GroupMember, BrokerError> {
    let guard = crate::broker::subscribe_once(&server.subscriptions, topic, group)?;
    let handle = server.fresh_handle(topic).await?;
    let session = session(&server).await?;
    let (sender, assignments) = mpsc::unbounded_channel();
    let mut group = Group {
        called: group.to_owned(),
        name: server.names.group(&handle.name, group),
        server,
        handle,
        session,
        lows: Arc::default(),
        assignments: sender,
    };
    let (consumer, changes) = group.enter(start).await?;
    Ok(GroupMember::begin(assignments, guard, |left| {
        live(group, consumer, changes, left)
    }))
}

/// For how long an answered commit extends leases.
async fn session(server: &Kafka) -> Result<Session, BrokerError> {
    let (session, heartbeat) = match server.options.broker.protocol {
        // The commit itself is the sign of life.
        KafkaProtocol::Classic => (server.options.session_or_default(), Duration::ZERO),
        // It is not. But the client sends heartbeats in the same thread as commits, so the last heartbeat before a
        // commit is no older than two of their intervals.
        KafkaProtocol::Consumer => {
            let (session, heartbeat) = session_of_broker(server).await?;
            (session, 2 * heartbeat)
        }
    };
    let margin = session / 10;
    Ok(Session {
        whole: session,
        valid_for: session.saturating_sub(heartbeat + margin),
    })
}

async fn session_of_broker(server: &Kafka) -> Result<(Duration, Duration), BrokerError> {
    let asker = server.asker.clone();
    let asking = blocking(move || {
        let metadata = asker.fetch_metadata(None, ANSWER_WITHIN)?;
        Ok(metadata.brokers().first().map(MetadataBroker::id))
    });
    let failed = |error: KafkaError| server.failed("asking for the session time-out", error);
    let Some(id) = asking.await.map_err(failed)? else {
        return Ok((SESSION_OF_BROKER, HEARTBEAT_OF_BROKER));
    };
    let config = server.broker_config(id).await.map_err(failed)?;
    let setting = |key, otherwise| {
        let value = config.get(key).and_then(|entry| entry.value.as_ref());
        let millis = value.and_then(|value| value.parse().ok());
        millis.map_or(otherwise, Duration::from_millis)
    };
    Ok((
        setting("group.consumer.session.timeout.ms", SESSION_OF_BROKER),
        setting("group.consumer.heartbeat.interval.ms", HEARTBEAT_OF_BROKER),
    ))
}

impl Group {
    /// Starts a client that is a member.
    async fn enter(&mut self, start: Start) -> Result<(Consumer, Changes), BrokerError> {
        let lows = self.server.remembered(&self.handle, &self.called).await?;
        let is_known = lows.is_some();
        self.lows = Arc::new(lows.unwrap_or_default());
        // One that has read the topic before does not begin anew because Kafka has forgotten it.
        let is_forgotten = !is_known || planted("B7");
        let start = if is_forgotten { start } else { Start::Earliest };
        let failed = |error: KafkaError| self.server.failed("joining a group", error);
        let partitions = self.handle.topic.partitions().get();
        let config = client::member(&self.server.options, &self.name, partitions);
        let telling = self.server.telling.of(&self.name);
        let (consumer, changes) =
            Consumer::start(&config, telling, &self.handle.name).map_err(failed)?;
        let (client, handle) = (consumer.client.clone(), self.handle.clone());
        let entering = async {
            note_start(&client, &handle, start).await?;
            client.subscribe(&[&handle.name])
        };
        entering.await.map_err(failed)?;
        if !is_known {
            let reading = BTreeMap::new();
            self.server
                .remember(&self.handle, &self.called, &reading)
                .await?;
        }
        Ok((consumer, changes))
    }

    /// The same once more, in the topic as it is by now.
    async fn enter_again(&mut self) -> Result<(Consumer, Changes), BrokerError> {
        self.handle = self.server.fresh_handle(self.handle.topic.name()).await?;
        self.enter(Start::Earliest).await
    }

    /// Whether the topic is another one than the one that we joined for, as far as the catalog has been read.
    fn is_reborn(&self) -> bool {
        let declared = self.server.last_declared(self.handle.topic.name());
        declared.is_some_and(|declared| declared.born != self.handle.born)
    }

    /// Another process has our name.
    fn fenced(&self) -> BrokerError {
        let instance = self
            .server
            .options
            .broker
            .instance
            .as_deref()
            .unwrap_or_default();
        let detail = format!(
            "another process has joined as instance {instance:?}, and this one reads nothing more: give \
             each process an instance of its own, then subscribe again"
        );
        self.server.failed("joining a group", detail)
    }
}

/// Notes where the group starts in partitions that it has not read, so that "from now on" means the same
/// later. Kafka takes that only while the group has no members; if it has, they have done it.
async fn note_start(
    client: &Arc<Client>,
    handle: &Arc<TopicHandle>,
    start: Start,
) -> Result<(), KafkaError> {
    let (asker, of) = (client.clone(), handle.clone());
    let ends = blocking(move || {
        // Else the client learns who leads the partitions only some time after it has joined.
        asker.fetch_metadata(Some(&of.name), ANSWER_WITHIN)?;
        if start == Start::Earliest || has_committed(&asker, &of)? {
            return Ok(None);
        }
        ends_of(&asker, &of).map(Some)
    });
    let Some(ends) = ends.await? else {
        return Ok(());
    };
    let Err(error) = consumer::commit(client, ends).await else {
        return Ok(());
    };
    let (asker, of) = (client.clone(), handle.clone());
    if blocking(move || has_committed(&asker, &of)).await? {
        tracing::debug!(%error, "another member was faster");
        return Ok(());
    }
    Err(error)
}

fn has_committed(client: &Client, handle: &TopicHandle) -> Result<bool, KafkaError> {
    let committed = committed(client, handle, handle.topic.partitions().iter())?;
    Ok(!committed.is_empty())
}

/// A commit of where the partitions end.
fn ends_of(client: &Client, handle: &TopicHandle) -> Result<TopicPartitionList, KafkaError> {
    let all = handle.topic.partitions().iter();
    let ends = edges(client, handle, all, Offset::End)?;
    let mut commit = list(handle, [], Offset::Invalid)?;
    for (partition, end) in ends {
        let mark = Mark::at(end, handle.born);
        let number = i32::try_from(partition).unwrap_or_default();
        let mut element = commit.add_partition(&handle.name, number);
        element.set_offset(Offset::Offset(i64::try_from(end).unwrap_or(i64::MAX)))?;
        element.set_metadata(mark.encode());
    }
    Ok(commit)
}

/// Is a member until it is to leave, and joins again when the client breaks.
async fn live(
    mut group: Group,
    mut consumer: Consumer,
    mut changes: Changes,
    mut leave: oneshot::Receiver<()>,
) {
    loop {
        let mut membership = Membership::new(&group, &consumer);
        let commits = membership.commits.clone();
        let broken = tokio::select! {
            biased;
            _ = &mut leave => None,
            error = membership.follow(&mut changes) => Some(error),
            () = commits.run() => None,
        };
        if !matches!(broken, Some(Broken::Reborn)) {
            membership.remember().await;
        }
        if !membership.has_joined {
            // A client that leaves while it joins would count as a member until its session is over.
            let joining = async { while let Some(Change::HandedOut(_)) = changes.recv().await {} };
            let _ = timeout(JOINED_WITHIN, joining).await;
        }
        drop((membership, commits));
        consumer.close().await;
        match broken {
            None => return,
            Some(Broken::Reborn) => {
                tracing::warn!(
                    group = group.name,
                    "topic was created anew, group starts anew"
                );
            }
            Some(Broken::Client(error))
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::FencedInstanceId) =>
            {
                // To join again would throw the other one out, which would do the same.
                let _ = group.assignments.send(Err(group.fenced()));
                let _ = leave.await;
                return;
            }
            Some(Broken::Client(error)) => {
                tracing::error!(group = group.name, %error,
                    "group member failed, rejoining");
                let error = group.server.failed("joining a group", error);
                let _ = group.assignments.send(Err(error));
            }
        }
        (consumer, changes) = loop {
            tokio::select! {
                biased;
                _ = &mut leave => return,
                () = sleep(JOIN_AGAIN) => {}
            }
            match group.enter_again().await {
                Ok(entered) => break entered,
                Err(error) => {
                    let _ = group.assignments.send(Err(error));
                }
            }
        };
    }
}

/// Why a membership is over.
enum Broken {
    /// The client cannot go on.
    Client(KafkaError),
    /// The topic is gone, and there is another one of its name.
    Reborn,
}

/// One membership, from joining until it leaves or breaks.
struct Membership<'a> {
    group: &'a Group,
    client: Arc<Client>,
    commits: Arc<Commits>,
    /// The partitions that the group has assigned.
    held: BTreeMap<u32, Arc<OwnedPartition>>,
    /// Whether the group has assigned anything.
    has_joined: bool,
    /// What a rebalance has revoked. Unassigned when the bus has released all of it.
    leaving: Vec<u32>,
    /// The ownership of something that is held has changed.
    changed: Arc<Notify>,
    /// Take over what is assigned.
    tasks: JoinSet<()>,
    /// The positions that the catalog was told last.
    told: BTreeMap<u32, u64>,
}

impl<'a> Membership<'a> {
    fn new(group: &'a Group, consumer: &Consumer) -> Self {
        let at = group.server.options.server_list();
        let client = consumer.client.clone();
        Self {
            group,
            commits: Arc::new(Commits::new(client.clone(), group.session, at)),
            client,
            held: BTreeMap::new(),
            has_joined: false,
            leaving: Vec::new(),
            changed: Arc::default(),
            tasks: JoinSet::new(),
            told: BTreeMap::new(),
        }
    }

    /// Acts on what the group assigns and revokes, until the client cannot go on.
    async fn follow(&mut self, changes: &mut Changes) -> Broken {
        let mut telling = interval_at((Instant::now() + REMEMBER_EVERY).into(), REMEMBER_EVERY);
        let mut looking = interval(LOOK_EVERY);
        let mut is_late = std::pin::pin!(sleep(USUALLY_JOINED_WITHIN));
        loop {
            let result = tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Some(Change::Assigned(partitions)) => self.assigned(&partitions).await,
                    Some(Change::Revoked { partitions, is_lost }) => {
                        self.revoked(partitions, is_lost);
                        Ok(())
                    }
                    Some(Change::HandedOut(partitions)) => {
                        self.handed_out(&partitions);
                        Ok(())
                    }
                    Some(Change::Broken(error)) => return Broken::Client(error),
                    None => return Broken::Client(KafkaError::Canceled),
                },
                Some(_) = self.tasks.join_next() => Ok(()),
                () = self.changed.notified() => Ok(()),
                _ = telling.tick() => {
                    self.remember().await;
                    Ok(())
                }
                _ = looking.tick() => {
                    if self.group.is_reborn() {
                        return Broken::Reborn;
                    }
                    Ok(())
                }
                () = &mut is_late, if !self.has_joined => {
                    tracing::warn!(group = self.group.name, session = ?self.group.session.whole,
                        "no partitions assigned yet: the group waits for members that do not answer, until their sessions are over");
                    is_late.set(sleep(SAID_AGAIN_AFTER));
                    Ok(())
                }
            };
            let result = match result {
                Ok(()) => self.settle_changes().await,
                error => error,
            };
            if let Err(error) = result {
                return Broken::Client(error);
            }
        }
    }

    /// Assigns partitions to the client, and begins to take them over; the group does not wait for that.
    async fn assigned(&mut self, partitions: &[u32]) -> Result<(), KafkaError> {
        self.has_joined = true;
        let owned_partitions: Vec<_> = partitions
            .iter()
            .map(|partition| self.hold(*partition))
            .collect();
        let taking = self.taking(false);
        // Into the queues that were split off, from the position of the group; if that could not be read in time, from
        // what Kafka has stored.
        let mut assignment = TopicPartitionList::new();
        let finding = timeout(FOUND_WITHIN, taking.find(&owned_partitions)).await;
        let found = finding.ok().and_then(Result::ok);
        for (index, partition) in partitions.iter().enumerate() {
            let number = i32::try_from(*partition).unwrap_or_default();
            let low = found.as_ref().and_then(|found| found.get(index));
            let low = low.and_then(|found| i64::try_from(found.mark.position.low()).ok());
            let offset = low.map_or(Offset::Stored, Offset::Offset);
            assignment.add_partition_offset(&self.group.handle.name, number, offset)?;
        }
        let client = self.client.clone();
        blocking(move || client.incremental_assign(&assignment)).await?;
        match found {
            Some(found) => self.tasks.spawn(taking.take_all(found)),
            None => self.tasks.spawn(taking.run(owned_partitions)),
        };
        Ok(())
    }

    fn hold(&mut self, partition: u32) -> Arc<OwnedPartition> {
        let handle = self.group.handle.clone();
        let fetched = Fetched::split(&self.client, &handle, partition);
        let owned = OwnedPartition::new(handle, partition, fetched, self.changed.clone());
        let owned = Arc::new(owned);
        self.held.insert(partition, owned.clone());
        self.commits.add(&owned);
        owned
    }

    /// What takes partitions over.
    fn taking(&self, is_anew: bool) -> Takeover {
        Takeover {
            client: self.client.clone(),
            commits: self.commits.clone(),
            handle: self.group.handle.clone(),
            assignments: self.group.assignments.clone(),
            session: self.group.session,
            lows: self.group.lows.clone(),
            owner: self.group.server.owner,
            is_anew,
        }
    }

    /// Has the catalog remember the positions, if they are new. What fails is repeated the next time.
    async fn remember(&mut self) {
        let low = |owned: &OwnedPartition| Some(owned.mark.lock().as_ref()?.position.low());
        let held = self.held.iter();
        let lows: BTreeMap<u32, u64> = held
            .filter_map(|(partition, owned)| Some((*partition, low(owned)?)))
            .collect();
        if lows.is_empty() || lows == self.told {
            return;
        }
        let (server, handle) = (&self.group.server, &self.group.handle);
        let telling = server.remember(handle, &self.group.called, &lows);
        match timeout(REMEMBERED_WITHIN, telling).await {
            Ok(Ok(())) => self.told = lows,
            Ok(Err(error)) => {
                tracing::debug!(group = self.group.name, %error, "remembering group position failed");
            }
            Err(_) => tracing::debug!(
                group = self.group.name,
                "remembering group position timed out"
            ),
        }
    }

    fn handed_out(&self, partitions: &BTreeMap<u32, u64>) {
        for (partition, below) in partitions {
            if let Some(owned) = self.held.get(partition) {
                owned.handed_out(*below);
            }
        }
    }

    /// Revokes the leases of partitions that the group gives to others.
    fn revoked(&mut self, partitions: Vec<u32>, is_lost: bool) {
        for partition in &partitions {
            let Some(owned) = self.held.get(partition) else {
                continue;
            };
            if is_lost || !owned.is_taken() {
                owned.lose();
            } else {
                owned.lease.revoke();
            }
        }
        self.leaving.extend(partitions);
        // Also if none of them is held.
        self.changed.notify_one();
    }

    /// Unassigns what the bus has released, and takes over anew what it has lost while the group still assigns it.
    async fn settle_changes(&mut self) -> Result<(), KafkaError> {
        let is_over = |partition: &u32| self.held.get(partition).is_none_or(|held| held.is_over());
        if !self.leaving.is_empty() && self.leaving.iter().all(is_over) {
            let leaving = std::mem::take(&mut self.leaving);
            // IMPORTANT: before `incremental_unassign`. A commit of this member must not come after the first one of the
            // next owner.
            self.commits.forget(&leaving).await;
            for partition in &leaving {
                self.held.remove(partition);
            }
            let list = list(&self.group.handle, leaving, Offset::Invalid)?;
            let client = self.client.clone();
            blocking(move || client.incremental_unassign(&list)).await?;
        }
        let lost: Vec<u32> = self
            .held
            .values()
            .filter(|owned| owned.is_lost() && !self.leaving.contains(&owned.partition))
            .map(|owned| owned.partition)
            .collect();
        if !lost.is_empty() {
            self.commits.forget(&lost).await;
            let owned_partitions = lost.iter().map(|partition| self.hold(*partition)).collect();
            self.tasks.spawn(self.taking(true).run(owned_partitions));
        }
        Ok(())
    }
}

impl Drop for Membership<'_> {
    /// Loses all partitions, whether the member leaves or is dropped.
    fn drop(&mut self) {
        self.tasks.abort_all();
        for owned in std::mem::take(&mut self.held).into_values() {
            owned.lose();
        }
        self.commits.end();
    }
}

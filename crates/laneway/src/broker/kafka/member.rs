//! A member of a group: takes what the group gives it, and lets go what the group gives to others.
//!
//! # Who owns what, and who may take it
//!
//! The coordinator of the group knows. A partition is given to another member only when its owner has let
//! it go, or has been silent for a session. What the client tells while it is polled is noted and dealt
//! with here: partitions that are to be let go are called back from the bus, which finishes what runs and
//! commits; when it has released all of them, and no commit of ours is under way any more, they are given
//! up. Partitions that are lost are dropped, and nothing of them is committed.
//!
//! # What a member is sure of
//!
//! The client tells nothing of its heartbeats. But the coordinator refuses the commits of anybody who is not
//! a member, and counts a commit as a sign of life. So after a commit that was sent at *s* and went through,
//! nobody else is given what we have before *s* and a session. See `ARCHITECTURE.md`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataBroker;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::claim::{Fetched, Holding, PartitionClaim};
use super::client::{self, ANSWER_WITHIN};
use super::cluster::blocking;
use super::commits::{Commits, Session};
use super::consumer::{Change, Client, Consumer};
use super::ledger::{committed, edges, list};
use super::mark::Mark;
use super::options::KafkaProtocol;
use super::server::Server;
use super::topics::Place;
use crate::broker::member::{Claims, GroupMember};
use crate::broker::seats::Seat;
use crate::broker::{BrokerError, Start};
use crate::settle::Position;
use crate::topic::TopicName;

/// What has to do with the group goes on after a failure.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Joining takes no longer, if nobody else is in the way.
const JOINED_WITHIN: Duration = Duration::from_secs(2);

/// A client that cannot go on is replaced by another after this long.
const JOIN_AGAIN: Duration = Duration::from_secs(1);

/// How long a member may be silent unless its broker says otherwise, for groups that the broker manages.
const SESSION_OF_BROKER: Duration = Duration::from_secs(45);
/// How often it says that it is there.
const HEARTBEAT_OF_BROKER: Duration = Duration::from_secs(5);

type Changes = mpsc::UnboundedReceiver<Change>;

/// A group at a topic, as this process takes part in it.
struct Group {
    server: Arc<Server>,
    place: Arc<Place>,
    /// What it is called on the cluster.
    name: String,
    session: Session,
    claims: Claims,
    _seat: Seat,
}

/// Joins a group. What it gets comes when the group has agreed.
pub(super) async fn join(
    server: Arc<Server>,
    topic: &TopicName,
    group: &str,
    start: Start,
) -> Result<GroupMember, BrokerError> {
    let seat = server.seats.take(topic, group)?;
    let place = server.place_now(topic).await?;
    let session = session(&server).await?;
    let (sender, claims) = mpsc::unbounded_channel();
    let group = Group {
        name: server.names.group(&place.name, group),
        server,
        place,
        session,
        claims: sender,
        _seat: seat,
    };
    let (consumer, changes) = group.enter(start).await?;
    Ok(GroupMember::begin(claims, |left| {
        live(group, consumer, changes, left)
    }))
}

/// What an answered commit is worth.
async fn session(server: &Server) -> Result<Session, BrokerError> {
    let (session, heartbeat) = match server.options.protocol {
        // The commit itself is the sign of life.
        KafkaProtocol::Classic => (server.options.session_or_default(), Duration::ZERO),
        // It is not. But the client beats in the same thread that sends commits, so the last beat before
        // one is no older than two of their intervals.
        KafkaProtocol::Consumer => {
            let (session, heartbeat) = session_of_broker(server).await?;
            (session, 2 * heartbeat)
        }
    };
    let margin = session / 10;
    Ok(Session {
        sure_for: session.saturating_sub(heartbeat + margin),
    })
}

async fn session_of_broker(server: &Server) -> Result<(Duration, Duration), BrokerError> {
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
    async fn enter(&self, start: Start) -> Result<(Consumer, Changes), BrokerError> {
        let failed = |error: KafkaError| self.server.failed("joining a group", error);
        let config = client::member(&self.server.options, &self.name);
        let telling = self.server.telling.of(&self.name);
        let (consumer, changes) = Consumer::start(&config, telling).map_err(failed)?;
        let (client, place) = (consumer.client.clone(), self.place.clone());
        let entering = blocking(move || {
            // Else the client learns who leads the partitions only some time after it has joined.
            client.fetch_metadata(Some(&place.name), ANSWER_WITHIN)?;
            note_start(&client, &place, start)?;
            client.subscribe(&[&place.name])
        });
        entering.await.map_err(failed)?;
        Ok((consumer, changes))
    }
}

/// Notes where the group starts in partitions that it has not read, so that "from now on" means the same
/// later. Kafka takes that only while the group has no members; if it has, they have done it.
fn note_start(client: &Client, place: &Place, start: Start) -> Result<(), KafkaError> {
    if start == Start::Earliest {
        return Ok(());
    }
    let all = || place.topic.partitions().iter();
    if !committed(client, place, all())?.is_empty() {
        return Ok(());
    }
    let ends = edges(client, place, all(), Offset::End)?;
    let mut commit = list(place, [], Offset::Invalid)?;
    for (partition, end) in ends {
        let mark = Mark {
            epoch: 0,
            born: place.born,
            position: Position::at(end),
        };
        let number = i32::try_from(partition).unwrap_or_default();
        let mut element = commit.add_partition(&place.name, number);
        element.set_offset(Offset::Offset(i64::try_from(end).unwrap_or(i64::MAX)))?;
        element.set_metadata(mark.encode());
    }
    match client.commit(&commit, CommitMode::Sync) {
        Err(error) if !committed(client, place, all())?.is_empty() => {
            tracing::debug!(%error, "another member was faster");
            Ok(())
        }
        result => result,
    }
}

/// Is a member, again and again if need be, until it is to leave.
async fn live(
    group: Group,
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
        if !membership.has_joined {
            // Whoever leaves while it joins would be taken for a member until its session is over.
            let _ = timeout(JOINED_WITHIN, changes.recv()).await;
        }
        drop((membership, commits));
        consumer.close().await;
        let Some(error) = broken else {
            return;
        };
        tracing::error!(group = group.name, %error, "a member of a group broke; it joins again");
        let error = group.server.failed("being a member of a group", error);
        let _ = group.claims.send(Err(error));
        (consumer, changes) = loop {
            tokio::select! {
                biased;
                _ = &mut leave => return,
                () = sleep(JOIN_AGAIN) => {}
            }
            match group.enter(Start::Earliest).await {
                Ok(entered) => break entered,
                Err(error) => {
                    let _ = group.claims.send(Err(error));
                }
            }
        };
    }
}

/// One membership, from joining until it leaves or breaks.
struct Membership<'a> {
    group: &'a Group,
    client: Arc<Client>,
    commits: Arc<Commits>,
    /// What the group gave us.
    held: BTreeMap<u32, Arc<Holding>>,
    /// Whether the group knows us.
    has_joined: bool,
    /// What the group wants back, when the bus has released all of it.
    leaving: Vec<u32>,
    /// Something about what is held has changed.
    changed: Arc<Notify>,
    /// Takes what is ours.
    tasks: JoinSet<()>,
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
        }
    }

    /// Does what the group says, until the client cannot go on.
    async fn follow(&mut self, changes: &mut Changes) -> KafkaError {
        loop {
            let result = tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Some(Change::Assigned(partitions)) => self.assigned(&partitions).await,
                    Some(Change::Revoked { partitions, is_lost }) => {
                        self.revoked(partitions, is_lost);
                        Ok(())
                    }
                    Some(Change::Broken(error)) => return error,
                    None => return KafkaError::Canceled,
                },
                Some(_) = self.tasks.join_next() => Ok(()),
                () = self.changed.notified() => Ok(()),
            };
            let result = match result {
                Ok(()) => self.settle_changes().await,
                error => error,
            };
            if let Err(error) = result {
                return error;
            }
        }
    }

    /// Takes what the group gives us. The group learns soon, and does not wait for the rest.
    async fn assigned(&mut self, partitions: &[u32]) -> Result<(), KafkaError> {
        self.has_joined = true;
        let holdings: Vec<_> = partitions
            .iter()
            .map(|partition| self.hold(*partition))
            .collect();
        let taking = self.taking(false);
        // Into the queues that were split off; from where the group left off, whoever finds that out.
        let mut assignment = TopicPartitionList::new();
        let found = taking.find(&holdings).await.ok();
        for (index, partition) in partitions.iter().enumerate() {
            let number = i32::try_from(*partition).unwrap_or_default();
            let low = found.as_ref().and_then(|found| found.get(index));
            let low = low.and_then(|found| i64::try_from(found.mark.position.low()).ok());
            let offset = low.map_or(Offset::Stored, Offset::Offset);
            assignment.add_partition_offset(&self.group.place.name, number, offset)?;
        }
        let client = self.client.clone();
        blocking(move || client.incremental_assign(&assignment)).await?;
        match found {
            Some(found) => self.tasks.spawn(taking.take_all(found)),
            None => self.tasks.spawn(taking.run(holdings)),
        };
        Ok(())
    }

    fn hold(&mut self, partition: u32) -> Arc<Holding> {
        let place = self.group.place.clone();
        let fetched = Fetched::split(&self.client, &place, partition);
        let holding = Holding::new(place, partition, fetched, self.changed.clone());
        let holding = Arc::new(holding);
        self.held.insert(partition, holding.clone());
        self.commits.add(&holding);
        holding
    }

    /// Becomes the owner of partitions that are ours.
    fn taking(&self, is_anew: bool) -> Taking {
        Taking {
            client: self.client.clone(),
            commits: self.commits.clone(),
            place: self.group.place.clone(),
            claims: self.group.claims.clone(),
            sure_for: self.group.session.sure_for,
            is_anew,
        }
    }

    /// Calls back what the group gives to others.
    fn revoked(&mut self, partitions: Vec<u32>, is_lost: bool) {
        for partition in &partitions {
            let Some(holding) = self.held.get(partition) else {
                continue;
            };
            if is_lost || !holding.is_taken() {
                holding.lose();
            } else {
                holding.tenure.want();
            }
        }
        self.leaving.extend(partitions);
        // Also if there is nothing of them to wait for.
        self.changed.notify_one();
    }

    /// Gives up what the bus has released, and takes anew what it has lost without the group knowing.
    async fn settle_changes(&mut self) -> Result<(), KafkaError> {
        let is_over = |partition: &u32| self.held.get(partition).is_none_or(|held| held.is_over());
        if !self.leaving.is_empty() && self.leaving.iter().all(is_over) {
            let leaving = std::mem::take(&mut self.leaving);
            // A commit of ours must not come after the first one of the next owner.
            self.commits.forget(&leaving).await;
            for partition in &leaving {
                self.held.remove(partition);
            }
            let list = list(&self.group.place, leaving, Offset::Invalid)?;
            let client = self.client.clone();
            blocking(move || client.incremental_unassign(&list)).await?;
        }
        let lost: Vec<u32> = self
            .held
            .values()
            .filter(|holding| holding.is_lost() && !self.leaving.contains(&holding.partition))
            .map(|holding| holding.partition)
            .collect();
        if !lost.is_empty() {
            self.commits.forget(&lost).await;
            let holdings = lost.iter().map(|partition| self.hold(*partition)).collect();
            self.tasks.spawn(self.taking(true).run(holdings));
        }
        Ok(())
    }
}

impl Drop for Membership<'_> {
    /// Nothing is ours any more, whether we leave or are dropped.
    fn drop(&mut self) {
        self.tasks.abort_all();
        for holding in std::mem::take(&mut self.held).into_values() {
            holding.lose();
        }
        self.commits.end();
    }
}

/// Becomes the owner of partitions: reads what was settled, and raises the epoch.
struct Taking {
    client: Arc<Client>,
    commits: Arc<Commits>,
    place: Arc<Place>,
    claims: Claims,
    sure_for: Duration,
    /// Whether the client has read on, and has to go back.
    is_anew: bool,
}

/// A partition, and what was found of it.
struct Found {
    holding: Arc<Holding>,
    mark: Mark,
    /// Whether the client is elsewhere than the position.
    is_elsewhere: bool,
}

impl Taking {
    async fn run(self, holdings: Vec<Arc<Holding>>) {
        let found = loop {
            if holdings.iter().all(|holding| holding.is_over()) {
                return;
            }
            match self.find(&holdings).await {
                Ok(found) => break found,
                Err(error) => {
                    tracing::debug!(%error, "asking for positions failed; it is tried again");
                    sleep(TRY_AGAIN).await;
                }
            }
        };
        self.take_all(found).await;
    }

    async fn take_all(self, found: Vec<Found>) {
        let taking = found.into_iter().map(|found| self.take(found));
        futures_util::future::join_all(taking).await;
    }

    /// What the group has settled, as far as it is about what the partitions have.
    async fn find(&self, holdings: &[Arc<Holding>]) -> Result<Vec<Found>, KafkaError> {
        if holdings.is_empty() {
            return Ok(Vec::new());
        }
        let (client, place) = (self.client.clone(), self.place.clone());
        let partitions: Vec<u32> = holdings.iter().map(|holding| holding.partition).collect();
        // Three questions that do not wait for each other.
        let edge = |edge| {
            let (client, place, all) = (client.clone(), place.clone(), partitions.clone());
            blocking(move || edges(&client, &place, all, edge))
        };
        let (begins, ends) = (edge(Offset::Beginning), edge(Offset::End));
        let marks = blocking(move || committed(&client, &place, partitions));
        let (mut marks, begins, ends) = tokio::try_join!(marks, begins, ends)?;
        let found = holdings.iter().map(|holding| {
            let partition = holding.partition;
            let begin = begins.get(&partition).copied().unwrap_or(0);
            let end = ends.get(&partition).copied().unwrap_or(0);
            let before = marks.remove(&partition);
            let (epoch, position) = match before {
                Some(mark) => (mark.epoch, mark.position),
                None => (0, Position::at(begin)),
            };
            let low = position.low();
            // A partition that lost its end hands out offsets again that are settled here.
            let position = match end.checked_sub(1) {
                Some(last) => position.up_to(last),
                None => Position::at(0),
            };
            let position = position.merge(&Position::at(begin));
            Found {
                holding: holding.clone(),
                is_elsewhere: self.is_anew || position.low() < low,
                mark: Mark {
                    epoch: next_epoch(epoch),
                    born: self.place.born,
                    position,
                },
            }
        });
        Ok(found.collect())
    }

    /// Says that it is ours now, and gives it to the bus.
    async fn take(&self, found: Found) {
        let Found {
            holding,
            mark,
            is_elsewhere,
        } = found;
        let sent = loop {
            match self.commits.commit(&holding, mark.clone()).await {
                Ok(sent) => break sent,
                Err(_) if holding.is_over() => return,
                Err(error) => {
                    tracing::warn!(partition = holding.partition, %error,
                        "taking a partition failed; it is tried again");
                    sleep(TRY_AGAIN).await;
                }
            }
        };
        while is_elsewhere && !holding.is_over() {
            let (client, place) = (self.client.clone(), self.place.clone());
            let number = i32::try_from(holding.partition).unwrap_or_default();
            let low = i64::try_from(mark.position.low()).unwrap_or(i64::MAX);
            let seeking = blocking(move || {
                client.seek(&place.name, number, Offset::Offset(low), ANSWER_WITHIN)
            });
            match seeking.await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(%error, "going back in a partition failed; it is tried again");
                    sleep(TRY_AGAIN).await;
                }
            }
        }
        holding.tenure.extend(sent + self.sure_for);
        let claim = PartitionClaim {
            holding,
            epoch: mark.epoch,
            position: mark.position,
            commits: self.commits.clone(),
        };
        // If nobody is there to have it, the member is gone, and so are we soon.
        let _ = self.claims.send(Ok(Arc::new(claim)));
    }
}

/// Counts the owners. Kafka forgets what an idle group has committed; so the first one that it knows of
/// has the time for its number, which is more than all before it had.
fn next_epoch(before: u64) -> u64 {
    match before {
        0 => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_secs()),
        before => before + 1,
    }
}

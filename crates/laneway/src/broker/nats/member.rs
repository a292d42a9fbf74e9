//! A member of a group: it says that it is there, sees who else is, and takes its share.
//!
//! # Who owns what, and who may take it
//!
//! A member has an entry in the bucket of members and changes it every third of a lease, each time by
//! a compare-and-set on the last revision. It is *sure* of its partitions until one lease after the
//! moment **before** it sent the last change that went through. Another member that saw no change for
//! a lease and a margin, by its own clock, removes the entry, by a compare-and-set on the revision
//! that it saw. If that goes through, no later change of the silent member ever does; and since the
//! last one was sent before it was seen, the silent member was unsure before its entry was removed.
//! Only then are its partitions taken, each by a compare-and-set on its record. Nothing here compares
//! the clocks of two machines: they only have to run at about the same speed.
//!
//! A member whose entry is gone has lost everything it had, and joins again as a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::kv::Watch;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::bucket::Unchanged;
use super::claim::{Holding, PartitionClaim};
use super::connect::ANSWER_WITHIN;
use super::ledger::AT_ONCE;
use super::names;
use super::presence::{self, Others};
use super::record::GroupRecord;
use super::server::Server;
use super::share::{self, Holder};
use super::topics::Place;
use crate::broker::member::{Claims, GroupMember};
use crate::broker::seats::Seat;
use crate::broker::{BrokerError, Start};
use crate::settle::Position;
use crate::topic::TopicName;

/// What has to do with the group goes on after a failure.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// A group at a topic, as this process takes part in it.
struct Group {
    server: Arc<Server>,
    topic: TopicName,
    name: String,
    claims: Claims,
    _seat: Seat,
}

impl Group {
    fn lease(&self) -> Duration {
        self.server.options.lease
    }

    /// So long nothing may be heard of a member before it is taken for dead.
    fn silence(&self) -> Duration {
        presence::silence(self.lease())
    }
}

/// One membership, from joining until it leaves or is taken for dead.
struct Membership {
    group: Arc<Group>,
    id: String,
    key: String,
    revision: Mutex<u64>,
    sure_until: Mutex<Instant>,
    held: Mutex<BTreeMap<u32, Arc<Holding>>>,
    /// Something about what is held has changed: others should know, and the shares may be uneven.
    changed: Arc<Notify>,
    /// The others should be told now.
    tell: Notify,
}

/// Why a membership is over.
struct TakenForDead;

impl Membership {
    /// Becomes a member.
    async fn enter(group: Arc<Group>) -> Result<Self, BrokerError> {
        let id = Uuid::now_v7().simple().to_string();
        let key = names::member_key(&group.topic, &group.name, &id);
        let sent = Instant::now();
        let nothing = presence::encode(&group.name, describe("", &BTreeMap::new()));
        let writing = group.server.members.write(&key, nothing, 0).await;
        let revision = writing.map_err(|unchanged| match unchanged {
            Unchanged::Conflict => group.server.failed("joining", "the id is taken"),
            Unchanged::Unknown(trouble) => group.server.trouble(trouble),
        })?;
        Ok(Self {
            sure_until: Mutex::new(sent + group.lease()),
            group,
            id,
            key,
            revision: Mutex::new(revision),
            held: Mutex::default(),
            changed: Arc::default(),
            tell: Notify::new(),
        })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Holding>>> {
        lock(&self.held)
    }

    fn is_sure(&self) -> bool {
        Instant::now() < *lock(&self.sure_until)
    }

    /// Says that we are there, until somebody took us for dead.
    async fn beat(&self) -> TakenForDead {
        let every = self.group.lease() / 3;
        let server = &self.group.server;
        loop {
            if server.client.connection_state() == State::Connected {
                let sent = Instant::now();
                let (value, revision) = (
                    presence::encode(&self.group.name, describe(&self.id, &self.held())),
                    *lock(&self.revision),
                );
                let writing = server.members.write(&self.key, value, revision);
                match timeout(every, writing).await {
                    Ok(Ok(revision)) => {
                        *lock(&self.revision) = revision;
                        self.confirmed(sent + self.group.lease());
                        tokio::select! {
                            () = sleep(every.saturating_sub(sent.elapsed())) => {}
                            () = self.tell.notified() => {}
                        }
                        continue;
                    }
                    // Perhaps it went through after all, or an earlier one did.
                    Ok(Err(_)) | Err(_) => {
                        if let Ok(Ok(entry)) = timeout(every, server.members.read(&self.key)).await
                        {
                            if entry.value.is_none() {
                                return TakenForDead;
                            }
                            *lock(&self.revision) = entry.revision;
                        }
                    }
                }
            }
            sleep((every / 10).min(TRY_AGAIN)).await;
        }
    }

    fn confirmed(&self, sure_until: Instant) {
        *lock(&self.sure_until) = sure_until;
        for holding in self.held().values() {
            holding.tenure.extend(sure_until);
        }
    }

    /// Watches the others and takes our share, for ever.
    async fn share(&self, mut others: Others, mut watch: Watch) {
        let silence = self.group.silence();
        loop {
            let wait = others.next_silent(silence).unwrap_or(silence);
            tokio::select! {
                entry = watch.next() => match entry {
                    Some(Ok(entry)) => {
                        others.note_entry(&self.id, &entry);
                        while let Some(Some(Ok(entry))) = watch.next().now_or_never() {
                            others.note_entry(&self.id, &entry);
                        }
                    }
                    // It says so when it was silent for long, and goes on.
                    Some(Err(error)) => tracing::debug!(%error, "watching the group"),
                    None => match self.group.server.members.watch(&self.pattern()).await {
                        Ok(again) => watch = again,
                        Err(_) => sleep(TRY_AGAIN).await,
                    },
                },
                () = self.changed.notified() => {}
                () = sleep(wait.max(Duration::from_millis(10))) => {}
            }
            self.finish_giving().await;
            self.bury(&mut others, silence).await;
            if let Err(error) = self.balance(&others).await {
                tracing::warn!(topic = %self.group.topic, %error,
                    "sharing partitions failed; it is tried again");
                sleep(TRY_AGAIN).await;
                self.changed.notify_one();
            }
        }
    }

    fn pattern(&self) -> String {
        names::members_of_group(&self.group.topic, &self.group.name)
    }

    /// Who is there now, and whatever changes from then on.
    async fn look_around(&self) -> Result<(Others, Watch), BrokerError> {
        let server = &self.group.server;
        let looking = async {
            let mut others = Others::default();
            let mut watch = server.members.watch(&self.pattern()).await?;
            // Our own entry is among them, so there is a last one.
            while let Some(entry) = watch.next().await {
                let entry =
                    entry.map_err(|error| super::error::Trouble::new("watching a group", error))?;
                others.note_entry(&self.id, &entry);
                if entry.delta == 0 {
                    break;
                }
            }
            Ok((others, watch))
        };
        match timeout(ANSWER_WITHIN, looking).await {
            Ok(result) => result.map_err(|trouble| server.trouble(trouble)),
            Err(_) => Err(server.failed("watching a group", "timed out")),
        }
    }

    /// Removes members that were silent for too long. What they have can be taken then.
    async fn bury(&self, others: &mut Others, silence: Duration) {
        if !self.is_sure() {
            // We may be the one who was away.
            return;
        }
        let members = &self.group.server.members;
        for (id, revision) in others.silent_for(silence) {
            let key = names::member_key(&self.group.topic, &self.group.name, &id);
            match members.remove(&key, revision).await {
                Ok(()) => {
                    tracing::info!(topic = %self.group.topic, group = self.group.name, member = id,
                        "a member was silent for too long; its partitions go to others");
                    others.forget(&id);
                }
                // It is there after all, or somebody else was faster.
                Err(_) => {
                    if let Ok(entry) = members.read(&key).await {
                        others.note(&id, entry.value.as_ref(), entry.revision);
                    }
                }
            }
        }
    }

    /// Forgets what is not ours any more, and goes on with what the bus gave up giving away.
    async fn finish_giving(&self) {
        let leaving: Vec<_> = {
            let mut held = self.held();
            let before = held.len();
            held.retain(|_, holding| !holding.is_over());
            if held.len() != before {
                self.tell.notify_one();
            }
            held.values()
                .filter(|holding| holding.is_released())
                .cloned()
                .collect()
        };
        for holding in leaving {
            if holding.give_away().await.is_ok() {
                self.held().remove(&holding.partition);
                self.tell.notify_one();
            }
        }
    }

    /// Takes what is free and ours to take, and lets others have what is theirs.
    async fn balance(&self, others: &Others) -> Result<(), BrokerError> {
        if !self.is_sure() {
            return Ok(());
        }
        let server = &self.group.server;
        let known = server.place(&self.group.topic).await?;
        let mut members: Vec<Holder> = others.holders().collect();
        members.push(describe(&self.id, &self.held()));
        let wish = share::wish(&self.id, &members, known.topic.partitions().get());
        if !wish.give.is_empty() {
            for number in wish.give {
                if let Some(holding) = self.held().get(&number) {
                    holding.want();
                }
            }
            self.tell.notify_one();
        }
        if wish.take.is_empty() {
            return Ok(());
        }
        let place = server.place_now(&self.group.topic).await?;
        let Some(info) = server.stream_info(&place.stream).await? else {
            return Err(BrokerError::UnknownTopic(self.group.topic.clone()));
        };
        let last = info.state.last_sequence;
        let taking = wish.take.into_iter().map(|partition| {
            let place = place.clone();
            async move { self.take(place, last, partition, others).await }
        });
        let mut taking = stream::iter(taking).buffered(AT_ONCE);
        let mut result = Ok(());
        while let Some(taken) = taking.next().await {
            match taken {
                Ok(Some(claim)) => {
                    self.held()
                        .insert(claim.holding.partition, claim.holding.clone());
                    // If nobody is there to have it, the member is gone, and so are we soon.
                    let _ = self.group.claims.send(Ok(Arc::new(claim)));
                }
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
        }
        self.tell.notify_one();
        result
    }

    /// Takes a partition, unless it is with somebody who is alive.
    async fn take(
        &self,
        place: Arc<Place>,
        last: u64,
        partition: u32,
        others: &Others,
    ) -> Result<Option<PartitionClaim>, BrokerError> {
        let group = &self.group;
        let server = &group.server;
        let (before, revision) = server.group_record(&place, &group.name, partition).await?;
        let (owner, epoch, position) = match before {
            None => (None, 0, Position::at(0)),
            Some(record) => {
                let position = record.position_in(place.born, last);
                (record.owner, record.epoch, position)
            }
        };
        if let Some(owner) = owner.filter(|owner| *owner != self.id)
            && (others.knows(&owner) || self.is_there(&owner).await?)
        {
            return Ok(None);
        }
        let record = GroupRecord {
            owner: Some(self.id.clone()),
            epoch: epoch + 1,
            born: place.born,
            position,
        };
        let key = names::position_key(&group.topic, &group.name, partition);
        let revision = match server.groups.write(&key, record.encode(), revision).await {
            Ok(revision) => revision,
            Err(Unchanged::Conflict) => return Ok(None),
            // If it went through, the record says that it is ours, and we take it at the next look.
            Err(Unchanged::Unknown(trouble)) => return Err(server.trouble(trouble)),
        };
        let holding = Holding::new(
            server.clone(),
            place,
            group.name.clone(),
            partition,
            &record,
            revision,
            *lock(&self.sure_until),
            self.changed.clone(),
        );
        Ok(Some(PartitionClaim {
            holding: Arc::new(holding),
            position: record.position,
        }))
    }

    /// Whether a member is there that we have not heard of yet.
    async fn is_there(&self, id: &str) -> Result<bool, BrokerError> {
        let server = &self.group.server;
        let key = names::member_key(&self.group.topic, &self.group.name, id);
        let entry = server.members.read(&key).await;
        Ok(entry
            .map_err(|trouble| server.trouble(trouble))?
            .value
            .is_some())
    }

    /// Nothing is ours any more.
    fn lose_all(&self) {
        for holding in std::mem::take(&mut *self.held()).into_values() {
            holding.lose();
        }
    }

    /// Leaves: others need not wait until we have been silent for long.
    async fn leave(&self) {
        let held: Vec<_> = self.held().values().cloned().collect();
        for holding in held {
            holding.lose();
        }
        let members = &self.group.server.members;
        for _ in 0..3 {
            let revision = *lock(&self.revision);
            if members.remove(&self.key, revision).await.is_ok() {
                return;
            }
            match members.read(&self.key).await {
                Ok(entry) if entry.value.is_some() => *lock(&self.revision) = entry.revision,
                _ => return,
            }
        }
    }
}

fn describe(id: &str, held: &BTreeMap<u32, Arc<Holding>>) -> Holder {
    let leaving = held.values().filter(|holding| holding.is_leaving());
    Holder {
        id: id.to_owned(),
        leaving: leaving.map(|holding| holding.partition).collect(),
        held: held.keys().copied().collect(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins a group, and takes what is free of its share.
pub(super) async fn join(
    server: Arc<Server>,
    topic: &TopicName,
    group: &str,
    start: Start,
) -> Result<GroupMember, BrokerError> {
    let seat = server.seats.take(topic, group)?;
    let (sender, claims) = mpsc::unbounded_channel();
    let place = server.place_now(topic).await?;
    let group = Arc::new(Group {
        server,
        topic: topic.clone(),
        name: group.to_owned(),
        claims: sender,
        _seat: seat,
    });
    group.note_start(&place, start).await?;
    let membership = Membership::enter(group.clone()).await?;
    let (others, watch) = membership.look_around().await?;
    membership.balance(&others).await?;
    Ok(GroupMember::begin(claims, |left| {
        live(group, membership, others, watch, left)
    }))
}

/// Is a member, again and again if need be, until it is to leave.
async fn live(
    group: Arc<Group>,
    mut membership: Membership,
    mut others: Others,
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
            TakenForDead = membership.beat() => {}
            () = membership.share(others, watch) => {}
        }
        tracing::warn!(topic = %group.topic, group = group.name,
            "we were silent for too long, and others have our partitions; joining again");
        membership.lose_all();
        (membership, others, watch) = loop {
            let entering = async {
                let membership = Membership::enter(group.clone()).await?;
                let (others, watch) = membership.look_around().await?;
                Ok::<_, BrokerError>((membership, others, watch))
            };
            tokio::select! {
                biased;
                _ = &mut leave => return,
                entered = entering => match entered {
                    Ok(entered) => break entered,
                    Err(error) => {
                        tracing::warn!(topic = %group.topic, %error, "joining failed; it is tried again");
                        sleep(TRY_AGAIN).await;
                    }
                },
            }
        };
        // So that it looks at once.
        membership.changed.notify_one();
    }
}

impl Group {
    /// Notes where the group starts in partitions that it has not read, so that "from now on" means
    /// the same later.
    async fn note_start(&self, place: &Place, start: Start) -> Result<(), BrokerError> {
        let server = &self.server;
        let reading = place.topic.partitions().iter().map(|partition| async move {
            let (record, revision) = server.group_record(place, &self.name, partition).await?;
            let epoch = record.as_ref().map_or(0, |record| record.epoch);
            let is_known = record.is_some_and(|record| record.born == place.born);
            Ok::<_, BrokerError>((partition, is_known, epoch, revision))
        });
        let records: Vec<_> = stream::iter(reading).buffered(AT_ONCE).collect().await;
        let records: Vec<_> = records.into_iter().collect::<Result<_, _>>()?;
        // To a group that has read before, a partition without a position is a new one.
        let has_read = records.iter().any(|(_, is_known, ..)| *is_known);
        if has_read || start == Start::Earliest {
            return Ok(());
        }
        let info = server.stream_info(&place.stream).await?;
        let end = info.map_or(0, |info| info.state.last_sequence) + 1;
        let writing = records
            .into_iter()
            .map(|(partition, _, epoch, revision)| async move {
                let key = names::position_key(place.topic.name(), &self.name, partition);
                let record = GroupRecord {
                    owner: None,
                    epoch,
                    born: place.born,
                    position: Position::at(end),
                };
                match server.groups.write(&key, record.encode(), revision).await {
                    // Another member says the same at the same moment.
                    Ok(_) | Err(Unchanged::Conflict) => Ok(()),
                    Err(Unchanged::Unknown(trouble)) => Err(server.trouble(trouble)),
                }
            });
        let written: Vec<_> = stream::iter(writing).buffered(AT_ONCE).collect().await;
        written.into_iter().collect()
    }
}

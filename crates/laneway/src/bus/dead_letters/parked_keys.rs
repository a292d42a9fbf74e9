//! The keys of a subscription that are parked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use smol_str::SmolStr;

use super::digest::Digest;
use super::fencing::{Fence, Fences};
use super::topic::{Letter, LetterTopic};
use crate::bus::error::Error;
use crate::bus::partition_state::PartitionState;

/// The keys that are parked, and in which partitions: there are several if the topic has grown, or if
/// others publish to it by rules of their own.
#[derive(Debug, Default)]
pub(in crate::bus) struct ParkedKeys(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    keys: HashMap<SmolStr, BTreeMap<u32, ParkedKey>>,
    /// The partitions that are ours, by their numbers. One that is lost and assigned anew has another state. They are not
    /// kept from ending: a subscription has ended when they have.
    owned: HashMap<u32, Weak<PartitionState>>,
}

/// What is parked of a key in a partition.
#[derive(Debug, Default)]
struct ParkedKey {
    /// The last event that was parked; nothing if the key is held, and the event is not put aside yet.
    last: Option<Event>,
    /// Those that were parked and that can come again, if the owner fails before it has committed them.
    aside: BTreeSet<Event>,
    /// The letter that a release has handled last. It may not be settled yet.
    handled: Option<Handled>,
}

/// An event of a partition. Offsets alone do not tell one from another when they have begun anew.
type Event = (u64, Option<Digest>);

/// What is parked, as the letters say: key, partition and event.
type Loaded = (SmolStr, u32, Event);

/// What tells a letter of a key and partition from others, whatever its place: the event, and the epoch of the owner that
/// put it aside.
type Handled = (Event, Option<u64>);

fn handled_of(letter: &Letter) -> Handled {
    ((letter.origin.1, letter.digest), letter.epoch)
}

/// What is to be done with an event of a key that is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) enum Hold {
    /// It is put aside.
    PutAside,
    /// It is among the parked ones: it came again after a crash, and a second time it would be behind later ones.
    IsAside,
    /// Later ones are parked, and it was there before them if this one, the last of those, still is at its offset.
    /// Then it was released or dropped. Else offsets have begun anew, and it is put aside.
    IfNotPast(Event),
    /// The partition is another owner's.
    NotOurs,
}

impl ParkedKey {
    fn hold(&self, event: Event) -> Hold {
        let (offset, digest) = event;
        let mut same_offset = self
            .aside
            .range((offset, None)..)
            .take_while(|(at, _)| *at == offset);
        if same_offset.any(|(_, aside)| Digest::can_be(*aside, digest)) {
            return Hold::IsAside;
        }
        match self.last {
            Some(last) if last.0 >= offset => Hold::IfNotPast(last),
            _ => Hold::PutAside,
        }
    }

    fn add(&mut self, event: Event, committed: u64) {
        // What is committed does not come again.
        self.aside = self.aside.split_off(&(committed, None));
        if event.0 >= committed {
            self.aside.insert(event);
        }
    }
}

impl State {
    fn is_owned(&self, partition: &Arc<PartitionState>) -> bool {
        let owned = self.owned.get(&partition.number);
        owned.is_some_and(|owned| std::ptr::eq(owned.as_ptr(), Arc::as_ptr(partition)))
    }

    fn remove(&mut self, is_removed: impl Fn(&u32) -> bool) {
        self.keys.retain(|_, by_partition| {
            by_partition.retain(|partition, _| !is_removed(partition));
            !by_partition.is_empty()
        });
    }

    fn parked_key(&mut self, key: &str, letter: &Letter) -> Option<&mut ParkedKey> {
        let partition = u32::try_from(letter.origin.0).ok()?;
        self.keys.get_mut(key)?.get_mut(&partition)
    }
}

impl ParkedKeys {
    /// Learns what is parked in partitions that have become ours, in the place of what was known of them.
    fn replace(&self, partitions: &[Arc<PartitionState>], loaded: Vec<Loaded>) {
        let mut state = self.0.lock();
        // What another owner has released since is released.
        state.remove(|number| partitions.iter().any(|owned| owned.number == *number));
        // IMPORTANT: a partition ends before `forget` is called for it, so that what is ended is not learned of after that.
        let lasts = |partition: &&Arc<PartitionState>| !partition.has_ended();
        for partition in partitions.iter().filter(lasts) {
            let owned = Arc::downgrade(partition);
            state.owned.insert(partition.number, owned);
        }
        for (key, number, event) in loaded {
            let mut lasting = partitions.iter().filter(lasts);
            let Some(owned) = lasting.find(|owned| owned.number == number) else {
                continue;
            };
            let committed = owned.assignment.position().low();
            let by_partition = state.keys.entry(key).or_default();
            let parked = by_partition.entry(number).or_default();
            parked.last = parked.last.max(Some(event));
            parked.add(event, committed);
        }
    }

    pub(in crate::bus) fn contains(&self, key: &str) -> bool {
        let state = self.0.lock();
        !state.keys.is_empty() && state.keys.contains_key(key)
    }

    /// The partitions in which a key is parked.
    pub(in crate::bus) fn partitions(&self, key: &str) -> Vec<Arc<PartitionState>> {
        let state = self.0.lock();
        let by_partition = state.keys.get(key).into_iter().flatten();
        by_partition
            .filter_map(|(number, _)| state.owned.get(number)?.upgrade())
            .collect()
    }

    /// Parks a key. Answers what is to be done with this event of it. Does nothing for a partition that is not ours any
    /// more.
    pub(in crate::bus) fn hold(
        &self,
        key: &str,
        partition: &Arc<PartitionState>,
        offset: u64,
        digest: Option<Digest>,
    ) -> Hold {
        let mut state = self.0.lock();
        if !state.is_owned(partition) {
            return Hold::NotOurs;
        }
        let by_partition = match state.keys.get_mut(key) {
            Some(by_partition) => by_partition,
            None => state.keys.entry(SmolStr::new(key)).or_default(),
        };
        let parked = by_partition.entry(partition.number).or_default();
        parked.hold((offset, digest))
    }

    /// The event was put aside.
    pub(in crate::bus) fn parked(
        &self,
        key: &str,
        partition: &Arc<PartitionState>,
        offset: u64,
        digest: Option<Digest>,
    ) {
        let settled = partition.position().low();
        let mut state = self.0.lock();
        if state.is_owned(partition)
            && let Some(by_partition) = state.keys.get_mut(key)
        {
            let parked = by_partition.entry(partition.number).or_default();
            parked.last = Some((offset, digest));
            parked.add((offset, digest), settled);
        }
    }

    /// A release has handled a parked event. Until that is settled, the letter is found again by the next attempt.
    pub(in crate::bus) fn handled(&self, key: &str, letter: &Letter) {
        if let Some(parked) = self.0.lock().parked_key(key, letter) {
            parked.handled = Some(handled_of(letter));
        }
    }

    /// Whether a release has handled this one last, while its partition was ours.
    pub(in crate::bus) fn has_handled(&self, key: &str, letter: &Letter) -> bool {
        let mut state = self.0.lock();
        let parked = state.parked_key(key, letter);
        parked.is_some_and(|parked| parked.handled == Some(handled_of(letter)))
    }

    /// What was parked of a key in some partitions is released.
    pub(in crate::bus) fn released(&self, key: &str, partitions: &[Arc<PartitionState>]) {
        let mut state = self.0.lock();
        let owned = partitions.iter().filter(|owned| state.is_owned(owned));
        let numbers: Vec<_> = owned.map(|owned| owned.number).collect();
        if let Some(by_partition) = state.keys.get_mut(key) {
            by_partition.retain(|partition, _| !numbers.contains(partition));
            if by_partition.is_empty() {
                state.keys.remove(key);
            }
        }
    }

    /// A partition is ours no more: its keys are the next owner's. If it was assigned anew meanwhile, that is this
    /// process, and what it has learned stays.
    pub(in crate::bus) fn forget(&self, partition: &Arc<PartitionState>) {
        let mut state = self.0.lock();
        if state.is_owned(partition) {
            state.owned.remove(&partition.number);
            state.remove(|number| *number == partition.number);
        }
    }
}

/// Which keys of a partition are parked: its owner must know before it handles anything.
pub(in crate::bus) struct Parked {
    pub(in crate::bus) keys: Arc<ParkedKeys>,
    pub(in crate::bus) letters: Arc<LetterTopic>,
    /// The dead letters, which are fenced, too.
    pub(in crate::bus) dead: Arc<LetterTopic>,
    /// Whether the subscription parks keys.
    pub(in crate::bus) parks: bool,
}

impl Parked {
    /// Learns what is parked for a group in partitions that have become ours, and sees to it that
    /// nothing can be parked there by an earlier owner from now on. Nothing of them may be handled
    /// meanwhile.
    ///
    /// Answers the numbers of those that it could do this for. The others may be with later owners.
    pub(in crate::bus) async fn prepare(
        &self,
        group: &str,
        partitions: &[Arc<PartitionState>],
    ) -> Result<Vec<u32>, Error> {
        let place = self.fence(&fences_of(group, partitions)).await?;
        let (fences, mut loaded) = self.load(group, partitions, place).await?;
        let standing = |held: &Arc<PartitionState>| fences.epoch(group, u64::from(held.number));
        let standing: Vec<_> = partitions.iter().map(standing).collect();
        let (ours, anew) = still_ours(group, partitions, &standing);
        if !anew.is_empty() {
            let place = self.fence(&anew).await?;
            (_, loaded) = self.load(group, &ours, place).await?;
        }
        let ours = self.fence_dead(group, ours).await?;
        self.keys.replace(&ours, loaded);
        Ok(ours.iter().map(|partition| partition.number).collect())
    }

    async fn fence(&self, fences: &[Fence]) -> Result<Option<u64>, Error> {
        if fences.is_empty() {
            return Ok(None);
        }
        // Where keys are parked, the first letter of all might be one that does not count.
        self.letters.fence(fences, self.parks).await
    }

    /// Sees to it that no dead letter of an earlier owner counts from now on. Answers the partitions that it could do
    /// this for. Where there is no topic for dead letters, the first one that comes is by an owner whose lease is valid.
    async fn fence_dead(
        &self,
        group: &str,
        partitions: Vec<Arc<PartitionState>>,
    ) -> Result<Vec<Arc<PartitionState>>, Error> {
        let fences = fences_of(group, &partitions);
        if fences.is_empty() {
            return Ok(partitions);
        }
        let Some(place) = self.dead.fence(&fences, false).await? else {
            return Ok(partitions);
        };
        let standing = self.dead.epochs_through(place, group, &partitions);
        let (ours, anew) = still_ours(group, &partitions, &standing.await?);
        if !anew.is_empty() {
            self.dead.fence(&anew, false).await?;
        }
        Ok(ours)
    }

    /// The fences, and what is parked.
    async fn load(
        &self,
        group: &str,
        partitions: &[Arc<PartitionState>],
        through: Option<u64>,
    ) -> Result<(Fences, Vec<Loaded>), Error> {
        let numbers: Vec<_> = partitions.iter().map(|held| held.number).collect();
        let mut loaded = Vec::new();
        let visitor = |letter: Letter| {
            let partition = u32::try_from(letter.origin.0).unwrap_or_default();
            if letter.group == group
                && numbers.contains(&partition)
                && let Some(key) = letter.key
            {
                loaded.push((key, partition, (letter.origin.1, letter.digest)));
            }
            ControlFlow::Continue(())
        };
        let (has_useless, fences) = self.letters.visit_through(through, visitor).await?;
        if has_useless && let Err(error) = self.letters.settle(&[]).await {
            // It is only there to be read again.
            tracing::debug!(%error, "what is of no use among the letters stays there");
        }
        Ok((fences, loaded))
    }
}

/// The fences of those partitions that other processes can own, too.
fn fences_of(group: &str, partitions: &[Arc<PartitionState>]) -> Vec<Fence> {
    let is_shared = |held: &&Arc<PartitionState>| !held.assignment.lease().is_lasting();
    let shared = partitions.iter().filter(is_shared);
    shared.map(|held| fence_of(group, held, false)).collect()
}

fn fence_of(group: &str, partition: &PartitionState, anew: bool) -> Fence {
    Fence {
        group: group.to_owned(),
        partition: u64::from(partition.number),
        epoch: partition.epoch,
        anew,
    }
}

/// The partitions that are ours, by the epochs of the fences that stand for them, and the fences that they need.
fn still_ours(
    group: &str,
    partitions: &[Arc<PartitionState>],
    standing: &[Option<u64>],
) -> (Vec<Arc<PartitionState>>, Vec<Fence>) {
    let (mut ours, mut anew) = (Vec::new(), Vec::new());
    for (partition, standing) in partitions.iter().zip(standing) {
        let lease = partition.assignment.lease();
        if !lease.is_lasting() && standing.is_some_and(|epoch| epoch > partition.epoch) {
            // A later owner wrote it, or one from before epochs began anew. It cannot have been a later
            // one if no other member can have the partition even now.
            if !lease.is_valid() {
                continue;
            }
            anew.push(fence_of(group, partition, true));
        }
        ours.push(partition.clone());
    }
    (ours, anew)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::Notify;

    use super::*;
    use crate::broker::lease::Lease;
    use crate::broker::{Assignment, BoxFuture, BrokerError, Reader};
    use crate::bus::progress::Progress;
    use crate::record::Record;
    use crate::settle::Position;

    struct Assigned {
        partition: u32,
        lease: Lease,
        position: Position,
    }

    impl Assignment for Assigned {
        fn partition(&self) -> u32 {
            self.partition
        }

        fn epoch(&self) -> u64 {
            1
        }

        fn position(&self) -> &Position {
            &self.position
        }

        fn lease(&self) -> &Lease {
            &self.lease
        }

        fn read(&self) -> Box<dyn Reader> {
            unreachable!("nothing is read here")
        }

        fn commit(&self, _: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
            unreachable!("nothing is committed here")
        }

        fn lose(&self) {}

        fn release(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    fn partition(number: u32) -> Arc<PartitionState> {
        let assigned = Assigned {
            partition: number,
            lease: Lease::until(Instant::now()),
            position: Position::at(0),
        };
        let commits = Arc::new(Notify::new());
        let state = PartitionState::new(Arc::new(assigned), commits, Progress::default());
        Arc::new(state)
    }

    fn letter(partition: u64, offset: u64, epoch: u64) -> Letter {
        Letter {
            id: 100 + offset,
            key: Some("k".into()),
            group: "g".into(),
            reason: String::new(),
            attempts: 1,
            origin: (partition, offset),
            epoch: Some(epoch),
            at_ms: 0,
            record: Record::default(),
            missing: None,
            reference: None,
            digest: None,
        }
    }

    fn numbers(partitions: &[Arc<PartitionState>]) -> Vec<u32> {
        partitions.iter().map(|held| held.number).collect()
    }

    /// The digest of an event; they differ by their numbers.
    fn digest(number: u8) -> Option<Digest> {
        Digest::of(&Record {
            payload: vec![number].into(),
            ..Record::default()
        })
    }

    impl ParkedKeys {
        fn hold_first(&self, key: &str, partition: &Arc<PartitionState>, offset: u64) -> Hold {
            self.hold(key, partition, offset, digest(0))
        }
    }

    #[test]
    fn what_is_parked_already_is_not_parked_again() {
        let keys = ParkedKeys::default();
        let (old, new) = (partition(0), partition(1));
        keys.replace(&[old.clone(), new.clone()], Vec::new());
        assert!(!keys.contains("k"));
        assert_eq!(keys.hold_first("k", &old, 5), Hold::PutAside);
        assert!(keys.contains("k"));
        let again = keys.hold_first("k", &old, 5);
        assert_eq!(again, Hold::PutAside, "it was held, and not yet put aside");
        keys.parked("k", &old, 5, digest(0));
        let last = (5, digest(0));
        assert_eq!(keys.hold_first("k", &old, 4), Hold::IfNotPast(last));
        assert_eq!(keys.hold_first("k", &old, 5), Hold::IsAside);
        assert_eq!(keys.hold_first("k", &old, 6), Hold::PutAside);
        let grown = keys.hold_first("k", &new, 0);
        assert_eq!(grown, Hold::PutAside, "the topic has grown");
        assert_eq!(numbers(&keys.partitions("k")), [0, 1]);
        keys.forget(&old);
        assert_eq!(numbers(&keys.partitions("k")), [1]);
        keys.released("k", &[new]);
        assert!(!keys.contains("k"));
    }

    #[test]
    fn another_event_at_an_offset_that_was_parked_is_not_taken_for_it() {
        let keys = ParkedKeys::default();
        let owned = partition(0);
        let loaded = vec![
            ("k".into(), 0, (1, digest(1))),
            ("k".into(), 0, (2, digest(2))),
            ("k".into(), 0, (3, None)),
        ];
        keys.replace(std::slice::from_ref(&owned), loaded);
        assert_eq!(keys.hold("k", &owned, 1, digest(1)), Hold::IsAside);
        let last = Hold::IfNotPast((3, None));
        assert_eq!(keys.hold("k", &owned, 1, digest(9)), last);
        let unknown = keys.hold("k", &owned, 3, digest(9));
        assert_eq!(unknown, Hold::IsAside, "it was written by an earlier build");
        keys.parked("k", &owned, 1, digest(9));
        assert_eq!(keys.hold("k", &owned, 1, digest(9)), Hold::IsAside);
        assert_eq!(keys.hold("k", &owned, 2, digest(9)), Hold::PutAside);
    }

    #[test]
    fn what_is_loaded_takes_the_place_of_what_was_known() {
        let keys = ParkedKeys::default();
        let (first, other) = (partition(0), partition(1));
        keys.replace(&[first.clone(), other.clone()], Vec::new());
        keys.hold_first("released elsewhere", &first, 1);
        keys.hold_first("of another partition", &other, 1);
        let loaded = vec![
            ("k".into(), 0, (7, digest(0))),
            ("k".into(), 0, (6, digest(0))),
        ];
        keys.replace(std::slice::from_ref(&first), loaded);
        assert!(!keys.contains("released elsewhere"));
        assert!(keys.contains("of another partition"));
        assert_eq!(keys.hold_first("k", &first, 7), Hold::IsAside);
        let last = Hold::IfNotPast((7, digest(0)));
        assert_eq!(keys.hold_first("k", &first, 5), last, "the last one counts");
    }

    #[test]
    fn a_partition_that_is_assigned_anew_keeps_what_it_has_learned() {
        let keys = ParkedKeys::default();
        let (lost, anew) = (partition(0), partition(0));
        keys.replace(std::slice::from_ref(&lost), Vec::new());
        let loaded = vec![("k".into(), 0, (7, digest(0)))];
        keys.replace(std::slice::from_ref(&anew), loaded);
        // The task that held the lost one comes to it only now.
        keys.forget(&lost);
        assert!(keys.contains("k"));
        let lost_key = keys.hold_first("well", &lost, 8);
        assert_eq!(lost_key, Hold::NotOurs, "it is not its to park");
        assert!(!keys.contains("well"));
        keys.parked("k", &lost, 9, digest(0));
        let next = keys.hold_first("k", &anew, 8);
        assert_eq!(next, Hold::PutAside, "the lost one has parked nothing");
        keys.released("k", &[lost]);
        assert!(keys.contains("k"), "and has released nothing");
    }

    #[test]
    fn what_a_release_has_handled_last_is_known_until_the_partition_is_lost() {
        let keys = ParkedKeys::default();
        let owned = partition(0);
        let loaded = || vec![("k".into(), 0, (8, None))];
        keys.replace(std::slice::from_ref(&owned), loaded());
        assert!(!keys.has_handled("k", &letter(0, 7, 1)));
        keys.handled("k", &letter(0, 7, 1));
        assert!(keys.has_handled("k", &letter(0, 7, 1)));
        let of_another_life = Letter {
            digest: digest(0),
            ..letter(0, 7, 1)
        };
        for other in [
            letter(0, 8, 1),
            letter(0, 7, 2),
            letter(1, 7, 1),
            of_another_life,
        ] {
            assert!(!keys.has_handled("k", &other), "{:?}", other.origin);
        }
        assert!(!keys.has_handled("other", &letter(0, 7, 1)));
        keys.forget(&owned);
        keys.replace(&[partition(0)], loaded());
        assert!(!keys.has_handled("k", &letter(0, 7, 1)));
    }
}

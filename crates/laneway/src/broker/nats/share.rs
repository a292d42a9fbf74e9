//! Who has which partitions. Pure: it looks at the members and says what one of them should do.
//!
//! Every member decides for itself, from what all of them say that they hold. Two members may look at
//! different moments, so what is decided here is only a wish: taking a partition is one compare-and-set
//! that only one of them wins.
//!
//! With `P` partitions and `n` members everyone's share is `P / n`, and one more for the first
//! `P % n` of them. Those who hold most come first, so that as little as possible moves, and nothing
//! moves any more once the shares are even.

use std::collections::BTreeSet;

/// A member, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Holder {
    pub(super) id: String,
    /// The partitions that it has.
    pub(super) held: BTreeSet<u32>,
    /// Those among them that it is about to give away.
    pub(super) leaving: BTreeSet<u32>,
}

impl Holder {
    fn kept(&self) -> usize {
        self.held.difference(&self.leaving).count()
    }
}

/// What a member should do now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Wish {
    /// Free partitions to take.
    pub(super) take: Vec<u32>,
    /// Partitions to give away.
    pub(super) give: Vec<u32>,
}

/// What member `me` should do. `members` are those who are alive, `me` among them; `partitions` is how
/// many the topic has.
pub(super) fn wish(me: &str, members: &[Holder], partitions: u32) -> Wish {
    let mut order: Vec<&Holder> = members.iter().collect();
    order.sort_by(|a, b| b.kept().cmp(&a.kept()).then_with(|| a.id.cmp(&b.id)));
    let mut free = free(members, partitions).into_iter();
    let mut wish = Wish::default();
    for (rank, member) in order.iter().enumerate() {
        let share = share(partitions as usize, order.len(), rank);
        let kept = member.kept();
        // Each takes its own part of what is free, so that they do not run into each other.
        let take: Vec<u32> = free.by_ref().take(share.saturating_sub(kept)).collect();
        if member.id == me {
            wish.take = take;
            let kept = member.held.difference(&member.leaving).copied();
            // The highest numbers, whoever asks: the choice must not change from one look to the next.
            wish.give = kept.skip(share).collect();
        }
    }
    wish
}

fn free(members: &[Holder], partitions: u32) -> Vec<u32> {
    let held: BTreeSet<u32> = members
        .iter()
        .flat_map(|m| m.held.iter().copied())
        .collect();
    (0..partitions)
        .filter(|number| !held.contains(number))
        .collect()
}

/// How many of `partitions` the member at this rank of `members` should have.
fn share(partitions: usize, members: usize, rank: usize) -> usize {
    partitions / members + usize::from(rank < partitions % members)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holder(id: &str, held: impl IntoIterator<Item = u32>) -> Holder {
        Holder {
            id: id.to_owned(),
            held: held.into_iter().collect(),
            leaving: BTreeSet::new(),
        }
    }

    #[test]
    fn the_first_takes_all() {
        let wish = wish("a", &[holder("a", [])], 4);
        assert_eq!(wish.take, [0, 1, 2, 3]);
        assert!(wish.give.is_empty());
    }

    #[test]
    fn the_second_gets_half_when_it_is_let_go() {
        let mut members = vec![holder("a", 0..4), holder("b", [])];
        assert_eq!(wish("a", &members, 4).give, [2, 3]);
        assert_eq!(wish("b", &members, 4), Wish::default(), "nothing is free");
        members[0].leaving = [2, 3].into();
        assert_eq!(wish("a", &members, 4), Wish::default(), "once is enough");
        members[0].held = [0, 1].into();
        members[0].leaving.clear();
        assert_eq!(wish("b", &members, 4).take, [2, 3]);
    }

    #[test]
    fn what_a_dead_member_had_is_shared() {
        let members = [holder("a", [0, 1]), holder("b", [2, 3])];
        let (a, b) = (wish("a", &members, 6), wish("b", &members, 6));
        assert_eq!((a.take, b.take), (vec![4], vec![5]));
    }

    #[test]
    fn more_members_than_partitions_is_fine() {
        let members = [holder("a", [0]), holder("b", [1]), holder("c", [])];
        for id in ["a", "b", "c"] {
            assert_eq!(wish(id, &members, 2), Wish::default());
        }
    }

    /// A group that does what it wishes, one member after the other.
    struct Group {
        members: Vec<Holder>,
        partitions: u32,
    }

    impl Group {
        /// Everyone looks once and does it. Answers whether anything changed.
        fn round(&mut self, order: &[usize]) -> bool {
            let mut changed = false;
            for at in order {
                let index = at % self.members.len();
                let seen = self.members.clone();
                let wish = wish(&seen[index].id, &seen, self.partitions);
                let member = &mut self.members[index];
                changed |= wish != Wish::default() || !member.leaving.is_empty();
                for number in member.leaving.split_off(&0) {
                    member.held.remove(&number);
                }
                member.leaving.extend(wish.give);
                for number in wish.take {
                    let taken = seen.iter().any(|other| other.held.contains(&number));
                    assert!(!taken, "{number} was taken twice");
                    self.members[index].held.insert(number);
                }
            }
            changed
        }

        fn is_even(&self) -> bool {
            let counts = self.members.iter().map(|member| member.held.len());
            let (least, most) = (counts.clone().min(), counts.clone().max());
            counts.sum::<usize>() == self.partitions as usize
                && most.unwrap_or(0) - least.unwrap_or(0) <= 1
        }
    }

    proptest! {
        #[test]
        fn shares_become_even_and_stay_so(
            partitions in 1u32..40,
            owners in prop::collection::vec(0usize..9, 40),
            members in 1usize..8,
            order in prop::collection::vec(0usize..8, 8..16),
        ) {
            let mut group = Group {
                members: (0..members).map(|n| holder(&format!("m{n}"), [])).collect(),
                partitions,
            };
            // As it may be after anything: some with each, some with nobody.
            for (number, owner) in (0..partitions).zip(owners) {
                if let Some(member) = group.members.get_mut(owner) {
                    member.held.insert(number);
                }
            }
            let mut order = order;
            order.extend(0..members);
            let before = group.members.clone();
            for _ in 0..members + 4 {
                group.round(&order);
            }
            prop_assert!(group.is_even(), "{:?} from {:?}", group.members, before);
            prop_assert!(!group.round(&order), "and nothing moves any more");
        }

        #[test]
        fn those_who_look_at_once_never_take_the_same(
            partitions in 1u32..40,
            owners in prop::collection::vec(0usize..9, 40),
            members in 1usize..8,
        ) {
            let mut all: Vec<_> = (0..members).map(|n| holder(&format!("m{n}"), [])).collect();
            for (number, owner) in (0..partitions).zip(owners) {
                if let Some(member) = all.get_mut(owner) {
                    member.held.insert(number);
                }
            }
            let taken: Vec<u32> = all
                .iter()
                .flat_map(|member| wish(&member.id, &all, partitions).take)
                .collect();
            let distinct: BTreeSet<_> = taken.iter().collect();
            prop_assert_eq!(distinct.len(), taken.len());
        }
    }
}

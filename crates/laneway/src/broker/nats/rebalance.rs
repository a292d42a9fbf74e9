//! How partitions are shared among the members of a group. [`plan`] is pure: it gets the members and answers what one
//! of them should do.
//!
//! Every member plans for itself, from what all of them say that they hold. Two members may see different moments, so
//! taking a partition is one compare-and-set on its record, which only one of them wins.
//!
//! With `P` partitions and `n` members a share is `P / n`, and one more for the first
//! `P % n` of them. The members that hold most come first, so that as little as possible moves, and nothing
//! moves any more once the shares are even.

use std::collections::BTreeSet;

/// A member, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Holder {
    pub(super) id: String,
    /// The partitions that it has.
    pub(super) held: BTreeSet<u32>,
    /// Those among them that it is about to release.
    pub(super) leaving: BTreeSet<u32>,
}

impl Holder {
    fn kept(&self) -> usize {
        self.held.difference(&self.leaving).count()
    }
}

/// What a member should do now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// Free partitions to take.
    pub(super) take: Vec<u32>,
    /// Partitions to release.
    pub(super) release: Vec<u32>,
}

/// What member `me` should do. `members` are those that are alive, `me` among them; `partitions` is how
/// many the topic has.
pub(super) fn plan(me: &str, members: &[Holder], partitions: u32) -> Plan {
    let mut order: Vec<&Holder> = members.iter().collect();
    order.sort_by(|a, b| b.kept().cmp(&a.kept()).then_with(|| a.id.cmp(&b.id)));
    let mut free = free(members, partitions).into_iter();
    let mut plan = Plan::default();
    for (rank, member) in order.iter().enumerate() {
        let share = share(partitions as usize, order.len(), rank);
        let kept = member.kept();
        // Each takes its own part of what is free, so that they do not run into each other.
        let take: Vec<u32> = free.by_ref().take(share.saturating_sub(kept)).collect();
        if member.id == me {
            plan.take = take;
            let kept = member.held.difference(&member.leaving).copied();
            // The highest numbers: the choice must not change from one plan to the next.
            plan.release = kept.skip(share).collect();
        }
    }
    plan
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
        let plan = plan("a", &[holder("a", [])], 4);
        assert_eq!(plan.take, [0, 1, 2, 3]);
        assert!(plan.release.is_empty());
    }

    #[test]
    fn the_second_gets_half_when_it_is_released() {
        let mut members = vec![holder("a", 0..4), holder("b", [])];
        assert_eq!(plan("a", &members, 4).release, [2, 3]);
        assert_eq!(plan("b", &members, 4), Plan::default(), "nothing is free");
        members[0].leaving = [2, 3].into();
        assert_eq!(plan("a", &members, 4), Plan::default(), "once is enough");
        members[0].held = [0, 1].into();
        members[0].leaving.clear();
        assert_eq!(plan("b", &members, 4).take, [2, 3]);
    }

    #[test]
    fn what_a_dead_member_had_is_shared() {
        let members = [holder("a", [0, 1]), holder("b", [2, 3])];
        let (a, b) = (plan("a", &members, 6), plan("b", &members, 6));
        assert_eq!((a.take, b.take), (vec![4], vec![5]));
    }

    #[test]
    fn more_members_than_partitions_is_fine() {
        let members = [holder("a", [0]), holder("b", [1]), holder("c", [])];
        for id in ["a", "b", "c"] {
            assert_eq!(plan(id, &members, 2), Plan::default());
        }
    }

    /// A group that follows its plans, one member after the other.
    struct Group {
        members: Vec<Holder>,
        partitions: u32,
    }

    impl Group {
        /// Every member makes a plan and follows it. Answers whether anything changed.
        fn round(&mut self, order: &[usize]) -> bool {
            let mut changed = false;
            for at in order {
                let index = at % self.members.len();
                let seen = self.members.clone();
                let plan = plan(&seen[index].id, &seen, self.partitions);
                let member = &mut self.members[index];
                changed |= plan != Plan::default() || !member.leaving.is_empty();
                for number in member.leaving.split_off(&0) {
                    member.held.remove(&number);
                }
                member.leaving.extend(plan.release);
                for number in plan.take {
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
            // As it may be after anything: some with each, some without an owner.
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
        fn members_that_plan_at_once_never_take_the_same(
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
                .flat_map(|member| plan(&member.id, &all, partitions).take)
                .collect();
            let distinct: BTreeSet<_> = taken.iter().collect();
            prop_assert_eq!(distinct.len(), taken.len());
        }
    }
}

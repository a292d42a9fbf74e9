//! A view has what rows in memory have, whatever is applied, committed, and lost with what was not committed.

mod support;

use laneway_cluster::apply::Shard;
use laneway_view::View;
use proptest::collection::vec;
use proptest::prelude::*;

use support::{Log, Step, catch_up, compare, identity, open, steps};

#[derive(Clone, Debug)]
enum Action {
    /// A fact with these rows.
    Fact(Vec<Step>),
    Commit,
    /// The view is dropped, and what was not committed with it.
    Reopen,
    CarryAll,
    Own,
    Foreign,
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        30 => vec(steps(), 1..5).prop_map(Action::Fact),
        6 => Just(Action::Commit),
        2 => Just(Action::Reopen),
        1 => Just(Action::CarryAll),
        1 => Just(Action::Own),
        1 => Just(Action::Foreign),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_view_has_what_memory_has(actions in vec(actions(), 1..120)) {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("view");
        let mut log = Log::new();
        let (mut shard, _) = open(&directory, &log);
        let mut committed = None;
        for action in actions {
            match action {
                Action::Fact(steps) => {
                    let rows = steps.into_iter().map(|step| log.row(step)).collect();
                    log.fact(rows);
                }
                Action::Commit => {
                    shard.table().commit(shard.head()).unwrap();
                    committed = Some(shard.head().clone());
                    compare(&shard, &log);
                    prop_assert_eq!(shard.table().uncommitted_bytes(), 0);
                }
                Action::Reopen => {
                    drop(shard);
                    let (again, head) = open(&directory, &log);
                    prop_assert_eq!(&head, &committed);
                    shard = again;
                    compare(&shard, &log);
                }
                Action::CarryAll => log.carry_all(),
                Action::Own => log.own(),
                Action::Foreign => log.foreign(),
            }
            catch_up(&mut shard, &log);
        }
        compare(&shard, &log);
        // Sums that were kept along the way are those of a view that was made at once.
        let (view, _) = View::open(&folder.path().join("other"), &identity()).unwrap();
        let mut other = Shard::new(identity(), view);
        catch_up(&mut other, &log);
        prop_assert_eq!(shard.table().needed_bytes(), other.table().needed_bytes());
        prop_assert_eq!(shard.table().counts(), other.table().counts());
    }
}

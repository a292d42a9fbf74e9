//! Which workers get the messages of a topic.

use std::collections::HashMap;
use std::sync::Arc;

use laneway_cluster::balance::{Mapping, Placement, Strategy};
use laneway_rpc::proto::State;
use parking_lot::Mutex;
use waiting::wait_for;

use super::receiver::Say;
use super::world::{Make, World, soon, submit};
use crate::options::Topics;

/// What a test has set.
#[derive(Clone, Default)]
struct Set(Arc<Mutex<HashMap<String, Arc<Placement>>>>);

impl Set {
    fn place(&self, topic: &str, workers: &[&str], strategy: Strategy) {
        let workers = workers.iter().map(|name| (*name).to_owned());
        let placement = Placement {
            mapping: Mapping::Some(workers.collect()),
            strategy,
            drawn: None,
        };
        let mut placements = self.0.lock();
        placements.insert(topic.to_owned(), Arc::new(placement));
    }
}

impl Topics for Set {
    fn placement(&self, topic: &str) -> Arc<Placement> {
        let placements = self.0.lock();
        placements.get(topic).cloned().unwrap_or_default()
    }
}

async fn started(set: &Set, world: &mut World) {
    let center = world.start_center(Make {
        topics: Some(Arc::new(set.clone())),
        ..Make::default()
    });
    world.assign_all(center);
    world.owned(center).await;
}

impl World {
    async fn submit_to(&self, topic: &str, text: &str, in_ms: u64) {
        let mut submit = submit(text, soon(in_ms), &[]);
        topic.clone_into(&mut submit.topic);
        self.submit(submit).await;
    }

    /// How many attempts a worker has started.
    fn started_by(&self, worker: &str) -> usize {
        let came = self.receiver.came().into_iter();
        came.filter(|came| came.worker == worker).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_its_workers_and_others_from_the_next_attempt_on() {
    let mut world = World::new(2);
    for name in ["w1", "w2", "w3"] {
        world.start_worker(name);
    }
    let set = Set::default();
    set.place("t", &["w2"], Strategy::Random);
    started(&set, &mut world).await;
    world.connected(1, 3).await;
    for number in 0..40 {
        world.submit_to("t", &format!("a{number}"), 50).await;
    }
    wait_for!(world.receiver.count() == 40);
    assert_eq!(world.started_by("w2"), 40);
    set.place("t", &["w1", "w3"], Strategy::RoundRobin);
    for number in 0..60 {
        world.submit_to("t", &format!("b{number}"), 50).await;
    }
    wait_for!(world.receiver.count() == 100);
    assert_eq!(world.started_by("w2"), 40);
    let came = world.receiver.came();
    let of = |worker: &str| {
        let of =
            |it: &&super::receiver::Came| it.worker == worker && it.id.as_str().starts_with('b');
        came.iter().filter(of).count()
    };
    assert_eq!((of("w1"), of("w3")), (30, 30), "in turns");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_whose_workers_have_no_room_holds_up_no_other() {
    let mut world = World::new(1);
    world.start_worker_with("narrow", |options| options.credit = 4);
    world.start_worker("wide");
    let set = Set::default();
    set.place("slow", &["narrow"], Strategy::Random);
    set.place("fast", &["wide"], Strategy::Random);
    started(&set, &mut world).await;
    world.connected(1, 2).await;
    for number in 0..400 {
        let text = format!("slow-{number}");
        world.receiver.says(&text, &[Say::Hang]);
        world.submit_to("slow", &text, 0).await;
    }
    wait_for!(world.started_by("narrow") == 4);
    for number in 0..5 {
        world.submit_to("fast", &format!("fast-{number}"), 10).await;
    }
    wait_for!(world.started_by("wide") == 5, "others go on");
    assert_eq!(world.started_by("narrow"), 4, "and it waits for its own");
    for number in 0..400 {
        world.receiver.let_go(&format!("slow-{number}"));
    }
    wait_for!(world.started_by("narrow") == 400);
    assert_eq!(world.started_by("wide"), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_removed_gets_nothing_and_what_it_had_is_begun_anew() {
    let mut world = World::started(1, &["w1"]).await;
    for number in 0..5 {
        let text = format!("m{number}");
        world.receiver.says(&text, &[Say::Hang]);
        world.submit(submit(&text, soon(20), &[])).await;
    }
    wait_for!(world.receiver.count() == 5);
    world.start_worker("w2");
    world.connected(1, 2).await;
    let w1 = world.entry("w1");
    world.centers[&1].center.remove_worker(w1);
    for number in 0..5 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.started_by("w2"), 5);
    assert_eq!(world.stats(1).dead_workers, 1);
    // The registry lists it, and it answers; all the same it is no member.
    world.connected(1, 1).await;
    for number in 5..25 {
        world
            .submit(submit(&format!("m{number}"), soon(20), &[]))
            .await;
    }
    wait_for!(world.started_by("w2") == 25);
    assert_eq!(world.started_by("w1"), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_center_that_gave_up_owns_nothing_and_follows() {
    let mut world = World::started(2, &["w1"]).await;
    let other = world.start_center(Make::default());
    world.submit(submit("a", soon(400), &[])).await;
    assert!(
        world.centers[&1]
            .center
            .give_up(std::time::Duration::from_secs(10))
            .await
    );
    assert_eq!(world.stats(1).owned, 0);
    world.assign_all(other);
    world.owned(other).await;
    world.reaches("a", State::Delivered).await;
    let applied = world.stats(1).applied;
    world.submit(submit("b", soon(0), &[])).await;
    world.reaches("b", State::Delivered).await;
    wait_for!(world.stats(1).applied > applied, "it follows the log");
}

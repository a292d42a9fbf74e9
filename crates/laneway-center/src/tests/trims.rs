//! A log that is trimmed under load.

use std::time::Duration;

use laneway_rpc::proto::State;
use waiting::wait_for;

use super::receiver::Say;
use super::world::{Make, World, now, soon, submit};

fn tiny() -> Make {
    let mut make = Make::default();
    make.settings.trim = Duration::from_millis(5);
    make.settings.trim_bytes = 1;
    make.settings.forget = Duration::from_millis(20);
    make.settings.owner.keep = Duration::from_millis(300);
    make.settings.owner.keep_offsets = 20;
    make
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_trimmed_under_load_and_stays_complete_by_itself() {
    let mut world = World::new(2);
    world.start_worker("w1");
    world.start_worker("w2");
    let center = world.start_center(tiny());
    // A copy that follows along.
    let copy = world.start_center(tiny());
    world.assign_all(center);
    world.owned(center).await;
    let mut number = 0_u64;
    // Each of them has the time of a wait: together they take most of one on a busy machine.
    let (mut waiting, mut trims) = (waiting::Waiting::default(), 0);
    world.submit(submit("stays", soon(600_000), &[])).await;
    world.receiver.says("dies", &[Say::Never]);
    world.submit(submit("dies", soon(0), &[])).await;
    // Much at first; then little, so that almost all of the log is dead at any time.
    while trims < 200 || number < 1_000 {
        let now = world.stats(center).trims;
        if now > trims {
            (waiting, trims) = (waiting::Waiting::default(), now);
        }
        waiting.check(&format_args!("more than {trims} trims"));
        let more = if number < 1_000 { 20 } else { 1 };
        let submits = (0..more).map(|more| {
            let due = soon(20 + more);
            let mut submit = submit(&format!("m{}", number + more), due, &[]);
            // None is too old, however busy the machine is: so little is remembered here.
            submit.at = soon(60_000);
            world.submit(submit)
        });
        futures_util::future::join_all(submits).await;
        number += more;
        waiting::pause().await;
    }
    let total = usize::try_from(number).unwrap() + 1;
    wait_for!(world.receiver.count() == total);
    assert_eq!(world.state("stays").await, State::Scheduled);
    assert_eq!(world.state("dies").await, State::Dead);
    // A new center builds its view from what is left; the copy has followed.
    world.assign(center, &[]);
    for next in [world.start_center(tiny()), copy] {
        world.assign_all(next);
        world.owned(next).await;
        assert_eq!(world.state("stays").await, State::Scheduled);
        assert_eq!(world.state("dies").await, State::Dead);
        world.assign(next, &[]);
        wait_for!(world.stats(next).owned == 0);
    }
    assert!((0..2).all(|shard| world.log.first(shard) > 100));
    assert_eq!(world.judge(Some(now())), []);
}

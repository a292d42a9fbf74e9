use super::*;

const HOUR: u64 = 3_600_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn since(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn it_follows_a_clock_that_is_not_set() {
    let mut steady = Steady::new(at(HOUR), since(5));
    for millis in 0..1000 {
        assert_eq!(
            steady.observe(at(HOUR + millis), since(5 + millis)),
            at(HOUR + millis)
        );
    }
}

#[test]
fn a_step_ahead_is_believed_after_as_long_as_it_is_wide() {
    let mut steady = Steady::new(at(0), since(0));
    assert_eq!(steady.observe(at(HOUR), since(0)), at(0));
    assert_eq!(
        steady.observe(at(2 * HOUR - 1), since(HOUR - 1)),
        at(HOUR - 1)
    );
    assert_eq!(steady.observe(at(2 * HOUR), since(HOUR)), at(2 * HOUR));
    assert_eq!(
        steady.observe(at(2 * HOUR + 7), since(HOUR + 7)),
        at(2 * HOUR + 7)
    );
}

#[test]
fn a_step_ahead_and_back_leaves_nothing_behind() {
    let mut steady = Steady::new(at(0), since(0));
    assert_eq!(steady.observe(at(HOUR + 10), since(10)), at(10));
    assert_eq!(steady.observe(at(20), since(20)), at(20));
    // Another step is another one.
    assert_eq!(steady.observe(at(2 * HOUR), since(HOUR)), at(HOUR));
}

#[test]
fn a_step_back_is_followed_and_so_is_the_way_forward_if_no_delay_was_counted_between() {
    let mut steady = Steady::new(at(2 * HOUR), since(0));
    assert_eq!(steady.observe(at(HOUR), since(10)), at(HOUR));
    assert_eq!(steady.observe(at(HOUR + 10), since(20)), at(HOUR + 10));
    assert_eq!(
        steady.observe(at(2 * HOUR + 30), since(30)),
        at(2 * HOUR + 30)
    );
    assert_eq!(steady.ahead(), None);
}

#[test]
fn a_delay_that_was_counted_after_a_step_back_is_not_cut_short_by_the_way_forward() {
    const HALF: u64 = HOUR / 2;
    let mut steady = Steady::new(at(2 * HOUR), since(0));
    assert_eq!(steady.observe(at(HOUR), since(10)), at(HOUR));
    steady.rely(at(HOUR + HALF));
    // Put right: the half hour goes on by the counter.
    assert_eq!(steady.observe(at(2 * HOUR + 10), since(20)), at(HOUR + 10));
    assert!(steady.ahead().is_some());
    let late = steady.observe(at(2 * HOUR + HALF - 10), since(HALF));
    assert!(late < at(HOUR + HALF), "{late}");
    // Then no delay relies on it any more.
    let wall = at(2 * HOUR + HALF + 10);
    assert_eq!(steady.observe(wall, since(HALF + 20)), wall);
    assert_eq!(steady.ahead(), None);
}

#[test]
fn a_very_wide_step_is_believed_after_the_limit() {
    let mut steady = Steady::new(at(0), since(0)).distrust(since(600));
    let month = 30 * 24 * HOUR;
    assert_eq!(steady.observe(at(month), since(1)), at(1));
    assert_eq!(steady.ahead(), Some(since(month - 1)));
    assert_eq!(steady.observe(at(month + 599), since(600)), at(600));
    assert_eq!(steady.observe(at(month + 600), since(601)), at(month + 600));
    assert_eq!(steady.ahead(), None);
}

#[test]
fn a_restart_does_not_make_a_step_ahead_believed() {
    let mut steady = Steady::new(at(0), since(0));
    assert_eq!(steady.observe(at(HOUR), since(10)), at(10));
    let kept = steady.changed().expect("it was set");
    assert_eq!(steady.changed(), None, "it is told once");
    let mut steady = Steady::resume(kept);
    assert_eq!(steady.observe(at(HOUR + 90), since(100)), at(100));
    assert_eq!(
        steady.observe(at(2 * HOUR), since(HOUR + 10)),
        at(2 * HOUR),
        "and it is believed when it would have been"
    );
}

#[test]
fn it_is_never_ahead_of_the_wall_clock() {
    let mut steady = Steady::new(at(HOUR), since(0));
    let walls = [HOUR, 0, 3 * HOUR, HOUR + 5, HOUR + 4, 10 * HOUR];
    for (wall, counter) in walls.into_iter().zip((0..).step_by(100)) {
        assert!(steady.observe(at(wall), since(counter)) <= at(wall));
    }
}

#[test]
fn a_delay_that_was_counted_before_a_step_ahead_is_not_cut_short_by_it() {
    let mut steady = Steady::new(at(HOUR), since(0));
    let due = steady.due_after(at(HOUR), since(0), since(50_000));
    assert_eq!(due, at(HOUR + 50_001));
    for second in 1..=50 {
        let millis = second * 1000;
        let now = steady.observe(at(HOUR + 30_000 + millis), since(millis));
        assert!(now < due, "after {second} s of 50");
    }
    let wall = at(HOUR + 30_000 + 50_001);
    assert_eq!(steady.observe(wall, since(50_001)), wall);
}

#[test]
fn a_delay_that_was_counted_during_a_step_ahead_is_not_cut_short_by_it() {
    let mut steady = Steady::new(at(HOUR), since(0));
    let wall = |millis: u64| at(HOUR + 30_000 + millis);
    steady.observe(wall(0), since(0));
    let due = steady.due_after(wall(26_000), since(26_000), since(25_000));
    assert_eq!(steady.observe(wall(30_000), since(30_000)), wall(30_000));
    assert!(steady.observe(wall(50_999), since(50_999)) < due);
    assert!(steady.observe(wall(51_001), since(51_001)) >= due);
}

#[test]
fn a_short_delay_is_on_time_although_a_step_ahead_is_taken_back() {
    let mut steady = Steady::new(at(HOUR), since(0));
    steady.observe(at(3 * HOUR), since(0));
    let due = steady.due_after(at(3 * HOUR), since(0), since(25_000));
    assert_eq!(
        steady.observe(at(HOUR + 10_000), since(10_000)),
        at(HOUR + 10_000)
    );
    assert!(steady.observe(at(HOUR + 25_001), since(25_001)) >= due);
}

#[test]
fn delays_that_follow_each_other_do_not_keep_a_step_ahead_from_being_believed() {
    let mut steady = Steady::new(at(HOUR), since(0));
    for second in 0..=31 {
        let millis = second * 1000;
        let wall = at(HOUR + 30_000 + millis);
        steady.due_after(wall, since(millis), since(25_000));
    }
    assert_eq!(steady.ahead(), None);
}

#[test]
fn a_step_on_top_of_a_step_has_to_hold_as_well() {
    let mut steady = Steady::new(at(0), since(0));
    assert_eq!(steady.observe(at(2 * HOUR), since(0)), at(0));
    let minutes = |minutes: u64| minutes * 60_000;
    let wall = at(5 * HOUR + minutes(59));
    assert_eq!(steady.observe(wall, since(minutes(59))), at(minutes(59)));
    let wall = at(5 * HOUR + minutes(61));
    assert_eq!(steady.observe(wall, since(minutes(61))), at(minutes(61)));
    let wall = at(5 * HOUR + minutes(119));
    assert_eq!(steady.observe(wall, since(minutes(119))), wall);
}

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::*;
use crate::Version;

const BUS: Route = Route::from_u64(0);
const BOUNDS: Bounds = Bounds {
    batch: 4,
    publishing: 1000,
    per_host: 2,
    callbacks: 5,
    waiting: 100,
    queued: 20,
    batch_bytes: 1 << 20,
    bus_bytes: 1 << 20,
    callback_bytes: 1 << 20,
};
const DEFAULT: Bounds = Bounds {
    batch: 4096,
    publishing: 32_768,
    per_host: 64,
    callbacks: 1024,
    waiting: 8192,
    queued: 250_000,
    batch_bytes: 4 << 20,
    bus_bytes: 32 << 20,
    callback_bytes: 64 << 20,
};

fn topic(number: u32) -> Route {
    Route::from_u64(u64::from(number) << 1)
}

fn host(number: u32) -> Route {
    Route::from_u64(u64::from(number) << 1 | 1)
}

fn waiting(route: Route, serial: u64) -> Scheduled {
    Scheduled {
        due_key: DueKey { at: now(), serial },
        version: Version::FIRST,
        route,
        payload_bytes: 0,
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(1000)
}

fn taken(turn: Option<Turn>) -> Vec<Scheduled> {
    match turn {
        Some(Turn::Deliver(_, batch)) => batch,
        other => panic!("nothing to deliver: {other:?}"),
    }
}

fn serials(turn: Option<Turn>) -> Vec<u64> {
    taken(turn).iter().map(|one| one.due_key.serial).collect()
}

/// All turns there are now, by host.
fn turns(routes: &mut Routes) -> Vec<(Route, usize)> {
    let mut turns = Vec::new();
    while let Some(turn) = routes.next(now()) {
        if let Turn::Deliver(route, batch) = turn {
            turns.push((route, batch.len()));
        }
    }
    turns
}

#[test]
fn a_topic_has_one_batch_at_a_time() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..6 {
        routes.push(waiting(BUS, serial));
    }
    assert_eq!(serials(routes.next(now())), [0, 1, 2, 3]);
    assert_eq!(routes.next(now()), None);
    routes.done(BUS, Ended::Batch(4));
    assert_eq!(serials(routes.next(now())), [4, 5]);
}

#[test]
fn a_stuck_host_leaves_room_for_others() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..6 {
        routes.push(waiting(host(1), serial));
    }
    routes.push(waiting(host(2), 10));
    assert_eq!(serials(routes.next(now())), [0, 1]);
    assert_eq!(serials(routes.next(now())), [10]);
    assert_eq!(routes.next(now()), None);
    routes.done(host(1), Ended::Short);
    assert_eq!(serials(routes.next(now())), [2]);
}

#[test]
fn all_hosts_together_have_a_bound_and_take_turns() {
    let mut routes = Routes::new(BOUNDS);
    for number in 1..=3 {
        for serial in 0..3 {
            routes.push(waiting(host(number), u64::from(number) * 10 + serial));
        }
    }
    let first = turns(&mut routes);
    assert_eq!(first.iter().map(|(_, count)| count).sum::<usize>(), 5);
    let hosts: BTreeSet<_> = first.iter().map(|(route, _)| *route).collect();
    assert_eq!(hosts.len(), 3, "{first:?}");
    assert!(routes.is_saturated());
    routes.done(first[0].0, Ended::Short);
    assert_eq!(turns(&mut routes).len(), 1);
    // A topic of the bus is not held up by any of it.
    routes.push(waiting(BUS, 99));
    assert_eq!(serials(routes.next(now())), [99]);
}

#[test]
fn a_bus_that_cannot_take_them_gets_them_again_in_order() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..5 {
        routes.push(waiting(BUS, serial));
    }
    let batch = taken(routes.next(now()));
    let later = now() + FIRST_HOLD;
    routes.put_back(&batch);
    routes.set_back(BUS, now());
    routes.done(BUS, Ended::Batch(4));
    assert_eq!(routes.next(now()), None);
    assert_eq!(routes.next_wake(), Some(later));
    assert_eq!(serials(routes.next(later)), [0, 1, 2, 3]);
}

#[test]
fn nothing_is_kept_of_a_destination_that_is_done() {
    let mut routes = Routes::new(BOUNDS);
    routes.push(waiting(host(7), 1));
    assert_eq!(serials(routes.next(now())), [1]);
    assert_eq!(routes.floor(), Some(DueKey::at(now())));
    routes.done(host(7), Ended::Short);
    routes.finish(waiting(host(7), 1).due_key);
    assert_eq!(routes.next(now()), None);
    assert!(routes.queues.is_empty());
    assert!(routes.by_length.is_empty());
    assert_eq!((routes.queued, routes.floor()), (0, None));
}

#[test]
fn a_host_that_takes_nothing_rests_and_is_tried_with_one_attempt() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..4 {
        routes.push(waiting(host(1), serial));
    }
    let batch = taken(routes.next(now()));
    let (soon, later) = (now() + FIRST_HOLD, now() + LONGEST_HOLD);
    for (one, until) in batch.iter().zip([soon, later]) {
        routes.put_back(&[*one]);
        routes.rest(host(1), until);
        routes.done(host(1), Ended::Short);
    }
    assert_eq!(routes.next(now()), None);
    assert_eq!(routes.next_wake(), Some(soon), "the first one decides");
    assert_eq!(turns(&mut routes).len(), 0);
    assert_eq!(taken(routes.next(soon)).len(), 1);
    assert_eq!(routes.next(soon), None, "one at a time");
    routes.went_well(host(1));
    routes.done(host(1), Ended::Short);
    assert_eq!(taken(routes.next(soon)).len(), 2);
}

#[test]
fn failures_that_are_real_end_the_caution_after_a_few() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..9 {
        routes.push(waiting(host(1), serial));
    }
    let one = taken(routes.next(now()))[0];
    routes.put_back(&[one]);
    routes.rest(host(1), now());
    routes.done(host(1), Ended::Short);
    routes.done(host(1), Ended::Short);
    for _ in 0..PROBATION {
        assert_eq!(taken(routes.next(now())).len(), 1);
        routes.went_wrong(host(1));
        routes.done(host(1), Ended::Short);
    }
    assert_eq!(taken(routes.next(now())).len(), 2);
}

/// Works off everything; answers how many turns passed until the newcomer had its own.
fn work_off(routes: &mut Routes, crowd: u32, newcomer: Route) -> Option<usize> {
    let mut delivered = 0;
    let mut found = None;
    while delivered < crowd as usize {
        let mut ended = Vec::new();
        while let Some(Turn::Deliver(route, batch)) = routes.next(now()) {
            delivered += batch.len();
            for waiting in batch {
                ended.push((route, waiting.due_key));
            }
            if route == newcomer {
                found.get_or_insert(delivered);
            }
        }
        if delivered > 5_000 && found.is_none() && routes.due_keys.first().is_some() {
            routes.push(waiting(newcomer, u64::MAX));
            found = Some(usize::MAX);
            // It is next, or nearly so.
            for (route, due_key) in ended.drain(..8.min(ended.len())) {
                routes.done(route, Ended::Short);
                routes.finish(due_key);
            }
            let next = turns(routes);
            assert!(next.iter().any(|(route, _)| *route == newcomer), "{next:?}");
            delivered += next.len() - 1;
            for (route, _) in next {
                routes.done(route, Ended::Short);
                routes.finish(DueKey::at(now()));
            }
        }
        for (route, due_key) in ended {
            routes.done(route, Ended::Short);
            routes.finish(due_key);
        }
    }
    found
}

#[test]
fn a_hundred_thousand_hosts_due_at_once_are_worked_off_and_a_newcomer_does_not_wait_for_them() {
    let mut routes = Routes::new(DEFAULT);
    let crowd = 100_000;
    let started = Instant::now();
    for number in 0..crowd {
        routes.push(waiting(host(number + 1), u64::from(number)));
    }
    assert!(work_off(&mut routes, crowd, host(9_999_999)).is_some());
    // A second or so without optimisation; a walk over all hosts for each of them takes hours.
    assert!(started.elapsed() < Duration::from_mins(1));
    assert!(routes.queues.is_empty(), "{}", routes.queues.len());
}

/// Hosts that hang, each with so many messages: everything that can begin has begun, and waits for long.
fn hang(hosts: u32, each: u64) -> Routes {
    let mut routes = Routes::new(DEFAULT);
    for number in 0..hosts {
        for serial in 0..each {
            routes.push(waiting(host(number + 1), u64::from(number) * each + serial));
        }
    }
    for _ in 0..1000 {
        let begun = turns(&mut routes);
        let count: usize = begun.iter().map(|(_, count)| count).sum();
        for _ in 0..count {
            routes.take_long();
        }
        if count == 0 {
            break;
        }
    }
    routes
}

#[test]
fn hosts_that_hang_take_nothing_from_others() {
    for (hosts, each) in [
        (1, 500),
        (16, 200),
        (100, 200),
        (1000, 1),
        (1000, 100),
        (4000, 50),
        (8000, 1),
    ] {
        let mut routes = hang(hosts, each);
        let healthy = host(9_999_999);
        for serial in 0..10 {
            routes.push(waiting(healthy, serial));
        }
        let mut begun = 0;
        for _ in 0..10 {
            for (route, count) in turns(&mut routes) {
                assert_eq!(route, healthy, "{hosts} × {each}");
                begun += count;
                for _ in 0..count {
                    routes.went_quickly(route, now());
                    routes.done(route, Ended::Short);
                }
            }
        }
        assert_eq!(begun, 10, "{hosts} × {each}");
    }
}

#[test]
fn however_many_hang_there_is_room_for_hosts_that_answered_quickly() {
    let mut routes = Routes::new(DEFAULT);
    let healthy = host(9_999_999);
    routes.went_quickly(healthy, now());
    for number in 0..50_000 {
        routes.push(waiting(host(number + 1), u64::from(number)));
    }
    loop {
        let begun = turns(&mut routes).len();
        if begun == 0 {
            break;
        }
        for _ in 0..begun {
            routes.take_long();
        }
    }
    assert!(routes.is_saturated());
    for serial in 0..1000 {
        routes.push(waiting(healthy, serial));
        assert_eq!(turns(&mut routes), [(healthy, 1)]);
        routes.done(healthy, Ended::Short);
    }
    // And when those that hang are given up, the others of them begin.
    for number in 0..1000 {
        routes.done(host(number + 1), Ended::Long);
    }
    assert!(!turns(&mut routes).is_empty());
}

#[test]
fn the_share_of_a_host_shrinks_as_room_for_those_that_wait_gets_scarce() {
    let routes = hang(32, 64);
    assert_eq!((routes.long, routes.share()), (2048, 64));
    let routes = hang(200, 64);
    assert!(routes.long < DEFAULT.waiting, "{}", routes.long);
    assert!(routes.share() < 16, "{}", routes.share());
}

#[test]
fn topics_of_a_bus_that_hangs_leave_room_for_each_other() {
    let mut routes = Routes::new(DEFAULT);
    let topics = 1000;
    for number in 0..topics {
        for serial in 0..200 {
            routes.push(waiting(topic(number), serial));
        }
    }
    let begun = turns(&mut routes);
    assert_eq!(begun.len(), topics as usize);
    let all: usize = begun.iter().map(|(_, count)| count).sum();
    assert!(all <= 2 * DEFAULT.publishing, "{all}");
}

/// Messages that are due, as a store has them.
#[derive(Default)]
struct Stored(BTreeMap<DueKey, Scheduled>);

impl Stored {
    fn scan(&self, from: DueKey, limit: usize) -> (Vec<Scheduled>, DueKey) {
        let found: Vec<_> = self
            .0
            .range(from..)
            .take(limit)
            .map(|(_, waiting)| *waiting)
            .collect();
        let end = match found.last() {
            Some(last) if found.len() == limit => last.due_key.next(),
            _ => DueKey::at(Timestamp::MAX),
        };
        (found, end)
    }
}

#[test]
fn what_does_not_fit_is_read_again_when_the_queue_is_empty() {
    let mut routes = Routes::new(BOUNDS);
    let mut stored = Stored::default();
    for serial in 0..30 {
        stored
            .0
            .insert(waiting(BUS, serial).due_key, waiting(BUS, serial));
        routes.push(waiting(BUS, serial));
    }
    // At the 21st it lost all but ten.
    assert_eq!(routes.queued, 10);
    let mut seen = Vec::new();
    while seen.len() < 31 {
        match routes.next(now()) {
            Some(Turn::Deliver(_, batch)) => {
                seen.extend(batch.iter().map(|one| one.due_key.serial));
                routes.done(BUS, Ended::Batch(batch.len()));
                for one in batch {
                    routes.finish(one.due_key);
                    stored.0.remove(&one.due_key);
                }
            }
            Some(Turn::Read(from)) => {
                let (found, end) = stored.scan(from, 7);
                // One that comes meanwhile waits for those that are read.
                if !seen.contains(&30) && !stored.0.contains_key(&waiting(BUS, 30).due_key) {
                    stored.0.insert(waiting(BUS, 30).due_key, waiting(BUS, 30));
                    routes.push(waiting(BUS, 30));
                }
                routes.found(&found, end);
            }
            None => panic!("nothing to do after {seen:?}"),
        }
    }
    let expected: Vec<_> = (0..31).collect();
    assert_eq!(seen, expected);
    assert_eq!(routes.floor(), None);
}

#[test]
fn a_stuck_destination_does_not_take_the_memory_of_others() {
    let mut routes = Routes::new(BOUNDS);
    for serial in 0..100 {
        routes.push(waiting(host(1), serial));
    }
    for serial in 100..106 {
        routes.push(waiting(host(2), serial));
    }
    assert!(routes.queued <= BOUNDS.queued);
    assert_eq!(routes.queues[&host(2)].due.len(), 6);
    assert_eq!(routes.queues[&host(2)].forgotten, None);
}

/// Many destinations over a store, with far more messages than fit into memory, in many orders: hosts that
/// hang, readings that end later, messages that come meanwhile.
/// Of each kind of destination and each class of size no more than its half is held, or one payload alone.
fn assert_bytes_are_bounded(routes: &Routes) {
    for (budget, most) in [
        (&routes.bus_bytes, routes.bounds.bus_bytes),
        (&routes.callback_bytes, routes.bounds.callback_bytes),
    ] {
        let (small, large) = budget.held();
        assert!(small <= most / 2, "{small} of small payloads");
        assert!(large <= most / 2 || large == 3000, "{large} of large ones");
    }
}

#[test]
fn large_payloads_to_hosts_that_hang_leave_room_for_small_ones_and_for_quick_hosts() {
    let mut routes = Routes::new(DEFAULT);
    let large = |route, serial| Scheduled {
        payload_bytes: 1 << 20,
        ..waiting(route, serial)
    };
    routes.went_quickly(host(1000), now());
    for serial in 0..1000 {
        routes.push(large(host(1), serial));
    }
    // One host gets half of what large payloads have.
    let of_one: usize = turns(&mut routes).iter().map(|(_, count)| count).sum();
    assert_eq!(of_one, 16);
    for number in 2..500 {
        for serial in 0..4 {
            routes.push(large(host(number), u64::from(number) * 10_000 + serial));
        }
    }
    // The others get one each, until a quarter is left.
    let of_others = turns(&mut routes);
    assert_eq!(of_others.len(), 8);
    assert!(of_others.iter().all(|(_, count)| *count == 1));
    // That is for those that answer, and small payloads go anywhere.
    routes.push(large(host(1000), 7));
    routes.push(Scheduled {
        payload_bytes: 500,
        ..waiting(host(2000), 8)
    });
    // Also behind large ones that do not fit.
    routes.push(Scheduled {
        payload_bytes: 500,
        ..waiting(host(400), 9)
    });
    let mut started: Vec<_> = turns(&mut routes);
    started.sort_unstable();
    assert_eq!(started, [(host(400), 1), (host(1000), 1), (host(2000), 1)]);
    // What ends makes room: first of what is kept for those that answer, then for one that waits.
    for expected in [0, 1] {
        routes.take_long();
        routes.done(host(1), Ended::Long);
        routes.give_back(&large(host(1), 0));
        assert_eq!(turns(&mut routes).len(), expected);
    }
}

/// Little room for bytes: 600 of small payloads, up to 100 each, and 600 of large ones, to hosts that are not known.
const FEW_BYTES: Bounds = Bounds {
    callback_bytes: 1600,
    ..DEFAULT
};

fn sized(route: Route, serial: u64, payload_bytes: u32) -> Scheduled {
    Scheduled {
        payload_bytes,
        ..waiting(route, serial)
    }
}

/// An attempt at a host begins, and goes on until it is [ended](end).
fn begin(routes: &mut Routes, one: Scheduled) -> Scheduled {
    routes.push(one);
    assert_eq!(taken(routes.next(now())), [one]);
    one
}

fn end(routes: &mut Routes, one: &Scheduled) {
    routes.done(one.route, Ended::Short);
    routes.finish(one.due_key);
    routes.give_back(one);
}

#[test]
fn a_host_that_waits_for_bytes_of_both_sizes_takes_what_comes_first() {
    for first_is_large in [false, true] {
        let mut routes = Routes::new(FEW_BYTES);
        let small: Vec<_> = (0..6)
            .map(|number| begin(&mut routes, sized(host(number), u64::from(number), 100)))
            .collect();
        let large = begin(&mut routes, sized(host(10), 10, 600));
        for (serial, bytes) in [(20, 100), (21, 500)] {
            routes.push(sized(host(2), serial, bytes));
        }
        assert_eq!(routes.next(now()), None, "neither fits");
        if first_is_large {
            end(&mut routes, &large);
            assert_eq!(serials(routes.next(now())), [21]);
            end(&mut routes, &small[0]);
            assert_eq!(serials(routes.next(now())), [20]);
        } else {
            end(&mut routes, &small[0]);
            assert_eq!(serials(routes.next(now())), [20]);
            end(&mut routes, &large);
            assert_eq!(serials(routes.next(now())), [21]);
        }
        assert_eq!(routes.next(now()), None);
    }
}

#[test]
fn bytes_that_a_host_does_not_take_go_to_the_next_that_waits() {
    // One that rests, and one that has as many attempts as it may have.
    for rests in [true, false] {
        let mut routes = Routes::new(FEW_BYTES);
        let first = begin(&mut routes, sized(host(1), 1, 400));
        // It hangs, so that nothing else will end.
        let hangs = begin(&mut routes, sized(host(4), 2, 150));
        begin(&mut routes, sized(host(2), 3, 0));
        // One that rests is not waited for, either, until what it wants fits.
        let wanted = if rests { 500 } else { 400 };
        for one in [sized(host(2), 4, wanted), sized(host(3), 5, 400)] {
            routes.push(one);
            assert_eq!(routes.next(now()), None, "it does not fit");
        }
        let later = now() + Duration::from_mins(1);
        routes.rest(host(2), if rests { later } else { now() });
        assert_eq!(routes.next(now()), None);
        end(&mut routes, &first);
        assert_eq!(serials(routes.next(now())), [5]);
        assert_eq!(routes.next(now()), None);
        // It is not forgotten.
        end(&mut routes, &sized(host(3), 5, 400));
        end(&mut routes, &sized(host(2), 3, 0));
        end(&mut routes, &hangs);
        assert_eq!(serials(routes.next(later)), [4]);
    }
}

#[test]
fn fifty_thousand_hosts_that_wait_for_room_cost_no_more_each_than_a_few() {
    let mut routes = Routes::new(DEFAULT);
    for number in 0..50_000 {
        routes.push(Scheduled {
            payload_bytes: 1 << 20,
            ..waiting(host(number), u64::from(number))
        });
    }
    let started = Instant::now();
    let (mut flying, mut delivered) = (VecDeque::new(), 0);
    while delivered < 50_000 {
        assert!(started.elapsed().as_secs() < 60, "{delivered} in a minute");
        while let Some(turn) = routes.next(now()) {
            flying.extend(taken(Some(turn)));
        }
        assert!(flying.len() <= 32);
        let one: Scheduled = flying.pop_front().expect("something always goes on");
        routes.done(one.route, Ended::Short);
        routes.finish(one.due_key);
        routes.give_back(&one);
        delivered += 1;
    }
    assert!(routes.queues.is_empty());
}

#[test]
fn a_batch_has_a_bound_in_bytes_and_one_that_is_larger_goes_alone() {
    let mut routes = Routes::new(Bounds {
        batch_bytes: 100,
        bus_bytes: 1600,
        ..BOUNDS
    });
    let sized = |topic, serial, payload_bytes| Scheduled {
        payload_bytes,
        ..waiting(topic, serial)
    };
    for (serial, bytes) in [(0, 40), (1, 40), (2, 40), (3, 5000), (4, 1)] {
        routes.push(sized(BUS, serial, bytes));
    }
    for expected in [&[0, 1][..], &[2], &[3], &[4]] {
        let batch = taken(routes.next(now()));
        let serials: Vec<_> = batch.iter().map(|one| one.due_key.serial).collect();
        assert_eq!(serials, expected);
        assert_eq!(routes.next(now()), None);
        routes.done(BUS, Ended::Batch(batch.len()));
        // Nothing of it is settled yet: what is held may delay the next one, and nothing else does.
        let next = routes.next(now());
        if let Some(Turn::Deliver(_, next)) = &next {
            routes.put_back(next);
            routes.done(BUS, Ended::Batch(next.len()));
            for one in next {
                routes.give_back(one);
            }
        }
        for one in &batch {
            routes.give_back(one);
        }
    }
    assert_eq!(routes.bus_bytes.held(), (0, 0));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one model, step by step")]
fn whatever_is_cut_everything_is_delivered_and_the_floor_stays_below_it() {
    for seed in 0..60_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut pick = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let destinations = 1 + pick(60);
        let mut routes = Routes::new(Bounds {
            batch: 3,
            publishing: 40,
            per_host: 2,
            callbacks: 12,
            waiting: 6,
            queued: 24,
            batch_bytes: 150,
            bus_bytes: 1000,
            callback_bytes: 2000,
        });
        let mut stored = Stored::default();
        let mut order: BTreeMap<Route, Vec<DueKey>> = BTreeMap::new();
        let (mut flying, mut reading) = (Vec::new(), None);
        // Their attempts have ended and are not noted yet.
        let mut unsettled: Vec<Scheduled> = Vec::new();
        let (mut next, all) = (0, 400);
        for step in 0_u64.. {
            assert!(step < 200_000, "seed {seed}: {} are left", stored.0.len());
            if next == all && stored.0.is_empty() {
                break;
            }
            if next < all && pick(3) > 0 {
                let number = u32::try_from(pick(destinations)).unwrap();
                let route = if number.is_multiple_of(4) {
                    topic(number)
                } else {
                    host(number)
                };
                let at = Timestamp::from_millis(1000 - pick(5));
                let due_key = DueKey { at, serial: next };
                // Some are larger than all that may be held.
                let payload_bytes = [0, 10, 60, 300, 3000][usize::try_from(pick(5)).unwrap()];
                let one = Scheduled {
                    due_key,
                    payload_bytes,
                    ..waiting(route, next)
                };
                next += 1;
                stored.0.insert(due_key, one);
                routes.push(one);
            }
            assert_bytes_are_bounded(&routes);
            match pick(5) {
                4 if !unsettled.is_empty() => {
                    let at = usize::try_from(pick(unsettled.len() as u64)).unwrap();
                    let one = unsettled.swap_remove(at);
                    routes.finish(one.due_key);
                    routes.give_back(&one);
                }
                0 => match routes.next(now()) {
                    Some(Turn::Deliver(_, batch)) => flying.push((batch, false)),
                    Some(Turn::Read(from)) => {
                        assert!(reading.is_none());
                        reading = Some(stored.scan(from, 5));
                    }
                    None => {}
                },
                1 => {
                    if let Some((found, end)) = reading.take() {
                        routes.found(&found, end);
                    }
                }
                2 if !flying.is_empty() => {
                    let at = usize::try_from(pick(flying.len() as u64)).unwrap();
                    let (batch, is_long) = &mut flying[at];
                    if !batch[0].route.is_bus() && !*is_long {
                        *is_long = true;
                        (0..batch.len()).for_each(|_| routes.take_long());
                    }
                }
                _ if !flying.is_empty() => {
                    let at = usize::try_from(pick(flying.len() as u64)).unwrap();
                    let (batch, is_long) = flying.swap_remove(at);
                    let route = batch[0].route;
                    if route.is_bus() {
                        routes.done(route, Ended::Batch(batch.len()));
                    }
                    for one in batch {
                        if !route.is_bus() {
                            let ended = if is_long { Ended::Long } else { Ended::Short };
                            routes.done(route, ended);
                        }
                        // One that is here twice is claimed once.
                        if stored.0.remove(&one.due_key).is_some() {
                            order.entry(route).or_default().push(one.due_key);
                        }
                        unsettled.push(one);
                    }
                }
                _ => {}
            }
            let lowest = stored.0.keys().next();
            assert!(
                routes.floor() <= lowest.copied() || lowest.is_none(),
                "seed {seed}"
            );
            assert!(lowest.is_none() || routes.floor().is_some(), "seed {seed}");
        }
        let delivered: usize = order.values().map(Vec::len).sum();
        assert_eq!(delivered as u64, all);
    }
}

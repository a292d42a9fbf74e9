//! The behaviours.

use std::time::Duration;

use bytes::Bytes;
use laneway::log::{Error, Fault};
use laneway::record::Record;
use laneway::testing::publish_foreign;
use laneway::topic::{Growth, Retention, Storage, Strategy, Topic};

use super::{Fixture, PARTITIONS, SOON, TOPIC, bodies, bytes, fault, next, numbered, open};

pub(crate) async fn what_is_appended_is_followed_in_order(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    assert_eq!(log.partitions(), PARTITIONS);
    let mut followers = Vec::new();
    for partition in 0..PARTITIONS {
        let from = log.bounds(partition).await.expect("bounds").start;
        followers.push(log.follow(partition, from));
    }
    let mut last = 0;
    for number in 0..20 {
        let records = numbered(10 * number..10 * number + 10);
        last = log.append(1, records).await.expect("appended");
    }
    let read = next(&mut followers[1], 200).await;
    assert_eq!(read.last().expect("some").0, last);
    assert_eq!(bodies(read), numbered(0..200));
    for partition in [0, 2] {
        log.append(partition, vec![bytes(7)])
            .await
            .expect("appended");
        let follower = &mut followers[partition as usize];
        assert_eq!(bodies(next(follower, 1).await), [bytes(7)]);
    }
}

pub(crate) async fn appends_that_overlap_take_turns(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let from = log.bounds(0).await.expect("bounds").start;
    let appends = (0..20).map(|number| log.append(0, numbered(5 * number..5 * number + 5)));
    for appended in futures_util::future::join_all(appends).await {
        appended.expect("appended");
    }
    let read = next(&mut log.follow(0, from), 100).await;
    assert_eq!(bodies(read), numbered(0..100));
}

pub(crate) async fn bounds_are_those_of_the_records(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let empty = log.bounds(0).await.expect("bounds");
    assert_eq!(empty.start, empty.end);
    let first = log.append(0, vec![bytes(0)]).await.expect("appended");
    let last = log.append(0, numbered(1..4)).await.expect("appended");
    log.append(1, numbered(0..4)).await.expect("appended");
    assert_eq!(log.bounds(0).await.expect("bounds"), first..last + 1);
    assert_eq!(log.append(0, Vec::new()).await.expect("none"), last + 1);
    let error = log.bounds(PARTITIONS).await.expect_err("there is none");
    assert!(matches!(error, Error::NoPartition { .. }), "{error}");
}

pub(crate) async fn exactly_one_record_is_read(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let one = log.append(0, vec![bytes(0)]).await.expect("appended");
    log.append(1, numbered(5..8)).await.expect("appended");
    let two = log.append(0, vec![bytes(1)]).await.expect("appended");
    assert_eq!(log.read(0, one).await.expect("read"), Some(bytes(0)));
    assert_eq!(log.read(0, two).await.expect("read"), Some(bytes(1)));
    assert_eq!(log.read(0, two + 1).await.expect("read"), None);
    assert_eq!(log.read(0, two + 1000).await.expect("read"), None);
    log.trim(0, two).await.expect("trimmed");
    assert_eq!(log.read(0, one).await.expect("read"), None);
    assert_eq!(log.read(0, two).await.expect("read"), Some(bytes(1)));
}

pub(crate) async fn a_follower_begins_in_the_middle(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    log.append(2, numbered(0..5)).await.expect("appended");
    let fifth = log.append(2, vec![bytes(5)]).await.expect("appended");
    log.append(2, numbered(6..9)).await.expect("appended");
    let mut follower = log.follow(2, fifth);
    let read = next(&mut follower, 4).await;
    assert_eq!(read[0].0, fifth);
    assert_eq!(bodies(read), numbered(5..9));
    let mut at_end = log.follow(2, follower.position());
    log.append(2, vec![bytes(9)]).await.expect("appended");
    assert_eq!(bodies(next(&mut at_end, 1).await), [bytes(9)]);
}

pub(crate) async fn a_partition_is_followed_twice(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let from = log.bounds(0).await.expect("bounds").start;
    let (mut one, mut two) = (log.follow(0, from), log.follow(0, from));
    for number in 0..3 {
        log.append(0, vec![bytes(number)]).await.expect("appended");
        assert_eq!(bodies(next(&mut one, 1).await), [bytes(number)]);
        assert_eq!(bodies(next(&mut two, 1).await), [bytes(number)]);
    }
    drop(one);
    let mut again = log.follow(0, from);
    assert_eq!(bodies(next(&mut again, 3).await), numbered(0..3));
}

pub(crate) async fn a_follower_that_is_given_up_loses_nothing(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let from = log.bounds(0).await.expect("bounds").start;
    let mut follower = log.follow(0, from);
    let writer = log.clone();
    let writing = tokio::spawn(async move {
        for number in 0..100 {
            let appended = writer.append(0, vec![bytes(number)]).await;
            appended.expect("appended");
        }
    });
    let mut read = Vec::new();
    let (mut limit, mut in_vain) = (0, 0);
    while read.len() < 100 {
        // Never the same moment. One that is given up before it has begun to read begins anew: on a busy machine that takes
        // longer than 5 ms.
        limit = (limit + 137) % (5_000 + 500 * in_vain);
        let reading = tokio::time::timeout(Duration::from_micros(limit), follower.next());
        if let Ok(records) = reading.await {
            read.extend(records.expect("records"));
            in_vain = 0;
        } else {
            in_vain += 1;
        }
    }
    writing.await.expect("no panic");
    assert_eq!(bodies(read), numbered(0..100));
}

pub(crate) async fn what_was_trimmed_is_not_followed_and_the_rest_stays(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let begin = log.append(0, vec![bytes(0)]).await.expect("appended");
    log.append(0, numbered(1..5)).await.expect("appended");
    let other = log.append(1, vec![bytes(77)]).await.expect("appended");
    let keep = log.append(0, vec![bytes(5)]).await.expect("appended");
    let end = log.append(0, numbered(6..9)).await.expect("appended") + 1;
    log.trim(0, keep).await.expect("trimmed");
    log.trim(0, keep).await.expect("it was already");
    log.trim(0, begin).await.expect("nothing to trim");
    assert_eq!(log.bounds(0).await.expect("bounds"), keep..end);
    let mut behind = log.follow(0, begin);
    for _ in 0..2 {
        match fault(&mut behind).await {
            Fault::Trimmed { from, first, .. } => assert_eq!((from, first), (begin, keep)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        bodies(next(&mut log.follow(0, keep), 4).await),
        numbered(5..9)
    );
    assert_eq!(log.read(1, other).await.expect("read"), Some(bytes(77)));
    let mut untouched = log.follow(1, other);
    assert_eq!(bodies(next(&mut untouched, 1).await), [bytes(77)]);
    // All of it, and then it goes on behind that.
    log.trim(0, u64::MAX).await.expect("trimmed");
    let bounds = log.bounds(0).await.expect("bounds");
    assert!(bounds.is_empty() && bounds.start >= end, "{bounds:?}");
    let mut follower = log.follow(0, bounds.start);
    let offset = log.append(0, vec![bytes(9)]).await.expect("appended");
    assert_eq!(next(&mut follower, 1).await, [(offset, bytes(9))]);
    assert!(offset >= bounds.start);
}

pub(crate) async fn a_follower_that_a_trim_overtook_says_so(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let from = log.append(0, vec![bytes(0)]).await.expect("appended");
    let mut follower = log.follow(0, from);
    next(&mut follower, 1).await;
    // More than a follower reads ahead.
    let large = Bytes::from(vec![7; 500_000]);
    let mut last = 0;
    for _ in 0..40 {
        last = log.append(0, vec![large.clone()]).await.expect("appended");
    }
    log.trim(0, last).await.expect("trimmed");
    let reading = async {
        let mut before = from;
        loop {
            match follower.next().await {
                // What it had read ahead.
                Ok(records) => {
                    for (offset, _) in records {
                        assert!(offset < last, "it skipped from {before} to {offset}");
                        before = offset;
                    }
                }
                Err(Error::Fault(Fault::Trimmed { first, .. })) => return first,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let first = tokio::time::timeout(SOON, reading).await;
    assert_eq!(first.expect("it says so"), last);
}

pub(crate) async fn a_follower_before_the_end_is_told_of_one_behind_it(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let last = log.append(0, numbered(0..3)).await.expect("appended");
    match fault(&mut log.follow(0, last + 1000)).await {
        Fault::Shortened { from, end, .. } => {
            assert_eq!((from, end), (last + 1000, last + 1));
        }
        other => panic!("{other}"),
    }
}

pub(crate) async fn a_log_made_anew_is_another_one(at: &impl Fixture) {
    let (bus, log) = open(at).await;
    let from = log.append(0, numbered(0..3)).await.expect("appended") + 1;
    let mut waiting = log.follow(0, from);
    let waits = tokio::time::timeout(Duration::from_millis(300), waiting.next());
    assert!(waits.await.is_err(), "there is nothing yet");
    assert_eq!(
        bus.log(TOPIC, PARTITIONS)
            .await
            .expect("it is there")
            .identity(),
        log.identity()
    );
    bus.delete(TOPIC).await.expect("deleted");
    let anew = bus.log(TOPIC, PARTITIONS).await.expect("it is made");
    assert_ne!(anew.identity(), log.identity());
    for follower in [&mut waiting, &mut log.follow(0, 0)] {
        match fault(follower).await {
            Fault::OtherTopic { was, now, .. } => {
                assert_eq!(was, log.identity());
                assert!(now.is_none_or(|now| now == anew.identity()));
            }
            other => panic!("{other}"),
        }
    }
    let error = log.bounds(0).await.expect_err("it is another one");
    assert!(
        matches!(error, Error::Fault(Fault::OtherTopic { .. })),
        "{error}"
    );
    let start = anew.bounds(0).await.expect("bounds").start;
    anew.append(0, vec![bytes(8)]).await.expect("appended");
    assert_eq!(
        bodies(next(&mut anew.follow(0, start), 1).await),
        [bytes(8)]
    );
}

pub(crate) async fn what_others_wrote_comes_through(at: &impl Fixture) {
    let (bus, log) = open(at).await;
    let mut starts = Vec::new();
    for partition in 0..PARTITIONS {
        starts.push(log.bounds(partition).await.expect("bounds").start);
    }
    let mut record = Record {
        key: Some("key".into()),
        payload: Bytes::from_static(b"\xff\x00 theirs"),
        ..Record::default()
    };
    let header = record.headers.append("name", Bytes::from_static(b"value"));
    header.expect("a header");
    let payload = record.payload.clone();
    let receipt = publish_foreign(&bus, TOPIC, record)
        .await
        .expect("published");
    let partition = receipt.partition;
    let mut follower = log.follow(partition, starts[partition as usize]);
    log.append(partition, vec![bytes(1), Bytes::new()])
        .await
        .expect("appended");
    let read = next(&mut follower, 3).await;
    assert_eq!(read[0], (receipt.offset, payload.clone()));
    assert_eq!(bodies(read), [payload.clone(), bytes(1), Bytes::new()]);
    let found = log.read(partition, receipt.offset).await.expect("read");
    assert_eq!(found, Some(payload));
}

pub(crate) async fn records_up_to_the_limit_are_taken(at: &impl Fixture) {
    let (_bus, log) = open(at).await;
    let most = log.largest();
    let from = log.bounds(0).await.expect("bounds").start;
    let too_large = vec![bytes(0), Bytes::from(vec![1; most + 1])];
    let error = log.append(0, too_large).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { index: 1, .. }), "{error}");
    assert!(!error.is_unknown());
    assert!(
        log.bounds(0).await.expect("bounds").is_empty(),
        "nothing was written"
    );
    // Bytes that cannot be made smaller.
    let mut state = 1_u64;
    let noise: Bytes = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()[7]
    })
    .take(most)
    .collect();
    let offset = log.append(0, vec![noise.clone()]).await.expect("appended");
    assert_eq!(
        next(&mut log.follow(0, from), 1).await,
        [(offset, noise.clone())]
    );
    assert_eq!(log.read(0, offset).await.expect("read"), Some(noise));
}

pub(crate) async fn other_settings_are_refused(at: &impl Fixture) {
    let (bus, _log) = open(at).await;
    let error = bus.log(TOPIC, 5).await.expect_err("it has others");
    let text = error.to_string();
    assert!(text.contains('3') && text.contains('5'), "{text}");
    let aged = Topic::plain("aged")
        .storage(Storage::File)
        .partitions(PARTITIONS)
        .retention(Retention::FOREVER.age(Duration::from_hours(1)))
        .build()
        .expect("valid");
    let declaring = bus.declare_with(&aged, Strategy::CreateOnly, Growth::Refused);
    declaring.await.expect("declared");
    let text = bus
        .log("aged", PARTITIONS)
        .await
        .expect_err("aged")
        .to_string();
    assert!(text.contains("1h") && text.contains("forever"), "{text}");
    let text = bus
        .log("a.dead", 1)
        .await
        .expect_err("reserved")
        .to_string();
    assert!(text.contains(".dead"), "{text}");
}

pub(crate) async fn a_closed_bus_refuses_and_ends_followers(at: &impl Fixture) {
    let (bus, log) = open(at).await;
    let from = log.append(0, vec![bytes(0)]).await.expect("appended") + 1;
    let mut follower = log.follow(0, from);
    let following = tokio::spawn(async move { follower.next().await });
    bus.close(SOON).await.expect("closed");
    let error = log.append(0, vec![bytes(1)]).await.expect_err("closed");
    assert!(!error.is_unknown(), "{error}");
    let ended = tokio::time::timeout(SOON, following).await;
    let ended = ended.expect("it ends").expect("no panic");
    ended.expect_err("the bus is closed");
}

pub(crate) async fn a_log_is_there_when_the_bus_is_opened_again(at: &impl Fixture) {
    if !at.is_kept() {
        return;
    }
    let (bus, log) = open(at).await;
    let first = log.append(0, vec![bytes(0)]).await.expect("appended");
    let second = log.append(0, vec![bytes(1)]).await.expect("appended");
    log.trim(0, second).await.expect("trimmed");
    bus.close(SOON).await.expect("closed");
    let (bus, again) = open(at).await;
    assert_eq!(again.identity(), log.identity());
    assert_eq!(
        next(&mut again.follow(0, second), 1).await,
        [(second, bytes(1))]
    );
    match fault(&mut again.follow(0, first)).await {
        Fault::Trimmed { .. } => {}
        other => panic!("{other}"),
    }
    bus.close(SOON).await.expect("closed");
}

//! Copies in a real Redis: written, refused, damaged, filled anew, restored.

mod support;

use std::time::Duration;

use laneway_backup::{Backup, RedisOptions, Unused};
use laneway_cluster::record::Instance;
use laneway_delay::{MessageId, Timestamp};
use support::{Log, WORKER, ask, backup, id, identity, restored};
use waiting::wait_for;

/// A shard with some messages, copied.
macro_rules! copied {
    ($url:expr, $log:ident, $backup:ident, $copy:ident) => {
        let $log = Log::new(identity());
        for number in 0..600 {
            $log.submit(number, 50);
        }
        let $backup = backup(&$url);
        let $copy = $log.backed_up(&$backup);
        wait_for!({
            $log.tick(&$copy);
            $copy.is_whole()
        });
        assert!($log.is_copied(&$backup).await);
    };
}

fn key(log: &Log, name: &str) -> String {
    format!("{}:{{0}}:{name}", log.head().identity.cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restored_equals_what_was_noted() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    let refills = backup.stats().refills;
    for number in 0..300 {
        log.begin(number, 1, WORKER);
        if number % 3 == 0 {
            log.deliver(number, 1);
        }
        if number % 10 == 0 {
            log.note(&copy);
        }
    }
    log.note(&copy);
    wait_for!(log.is_copied(&backup).await);
    assert_eq!(backup.stats().refills, refills);

    let shard = restored(&backup, &log.head().identity).await.unwrap();
    let last = log.record(shard.head().next - 1);
    shard.verify(last.as_ref()).unwrap();
    assert!(shard.verify(log.record(3).as_ref()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_from_the_copy() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    let other = Instance([9; 16]);
    for number in 0..20 {
        log.begin(number, 1, WORKER);
    }
    log.begin(30, 1, other);
    // Begun anew: another worker has it now.
    log.begin(19, 2, other);
    log.deliver(0, 1);
    log.note(&copy);
    wait_for!(log.is_copied(&backup).await);

    let questions = backup.questions(&log.head().identity.cluster, 1);
    assert_eq!(questions.worker_of(&id(5)).await.unwrap(), Some(WORKER));
    assert_eq!(questions.worker_of(&id(19)).await.unwrap(), Some(other));
    assert_eq!(questions.worker_of(&id(0)).await.unwrap(), None);
    assert_eq!(questions.worker_of(&id(40)).await.unwrap(), None);

    let mut found: Vec<(Timestamp, MessageId)> = Vec::new();
    loop {
        let page = questions.worker_messages(WORKER, found.last(), 5);
        let page = page.await.unwrap();
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    let expected: Vec<_> = (1..19)
        .map(|number| (Timestamp::from_millis(u64::from(number)), id(number)))
        .collect();
    assert_eq!(found, expected);

    let counts = &questions.counts().await.unwrap()[0];
    assert_eq!(counts.rows, 600);
    assert_eq!(counts.scheduled, 599);
    assert_eq!(counts.applied, Some(log.head().next));
    assert_eq!(counts.handed, [(WORKER, 18), (other, 2)]);
    let (from, until) = (Timestamp::from_millis(100), Timestamp::from_millis(200));
    assert_eq!(questions.due_between(from, until).await.unwrap(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writes_of_an_earlier_owner_are_refused() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    // The next owner, on another center.
    log.own();
    log.submit(1_000, 10);
    let next = support::backup(&url);
    let theirs = log.backed_up(&next);
    wait_for!({
        log.tick(&theirs);
        log.is_copied(&next).await
    });

    // The earlier one has not heard of it.
    let stale = Log::new(log.head().identity);
    stale.submit(2_000, 10);
    stale.note(&copy);
    wait_for!(backup.stats().refused >= 1);
    wait_for!({
        log.tick(&theirs);
        theirs.is_whole()
    });
    assert!(log.is_copied(&next).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_follow_is_refused_and_the_copy_filled_anew() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    let () = ask(&url, &["HSET", &key(&log, "meta"), "at", "17"]).await;
    let why = restored(&backup, &log.head().identity).await.unwrap_err();
    assert!(matches!(why, Unused::OtherRows), "{why:?}");
    let refills = backup.stats().refills;
    log.submit(1_000, 10);
    log.note(&copy);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    assert!(backup.stats().refills > refills);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_gone_makes_the_copy_useless_until_it_is_filled_anew() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    let deletions = [
        vec!["HDEL", "row", "message-3"],
        vec!["DEL", "row"],
        vec!["ZREM", "due", "message-3"],
        vec!["DEL", "meta"],
    ];
    for words in deletions {
        let refills = backup.stats().refills;
        let place = key(&log, words[1]);
        let mut command = vec![words[0], &place];
        command.extend(&words[2..]);
        let () = ask(&url, &command).await;
        if words[1] != "due" {
            assert!(restored(&backup, &log.head().identity).await.is_err());
        }
        // Nothing is noted: it is found out all the same.
        wait_for!({
            log.tick(&copy);
            backup.stats().refills > refills
        });
        wait_for!(log.is_copied(&backup).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_dump_is_refused_or_read_on_from() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    let names = ["meta", "row", "due"].map(|name| key(&log, name));
    let mut dump = Vec::new();
    for name in &names {
        dump.push(ask::<Vec<u8>>(&url, &["DUMP", name]).await);
    }
    for number in 0..100 {
        log.begin(number, 1, WORKER);
        log.deliver(number, 1);
    }
    log.note(&copy);
    wait_for!(log.is_copied(&backup).await);
    drop(copy);

    let restore = async |index: usize| {
        let mut connection = support::connect(&url).await;
        let mut command = redis::cmd("RESTORE");
        command.arg(&names[index]).arg(0).arg(&dump[index][..]);
        let () = command
            .arg("REPLACE")
            .query_async(&mut connection)
            .await
            .unwrap();
    };
    // Old rows under a new head.
    restore(1).await;
    let why = restored(&backup, &log.head().identity).await.unwrap_err();
    assert!(matches!(why, Unused::OtherRows), "{why:?}");
    // All of it: an earlier state, which is good where the log still has the record at its end, and only there.
    restore(0).await;
    restore(2).await;
    let old = restored(&backup, &log.head().identity).await.unwrap();
    assert!(old.head().next < log.head().next);
    old.verify(log.record(old.head().next - 1).as_ref())
        .unwrap();
    assert!(old.verify(None).is_err());

    // The owner notices that it went back.
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_other_clusters_and_logs_are_neither_used_nor_touched() {
    let url = needs::service!("redis");
    copied!(url, one, backup, copy);
    copied!(url, two, second, other);
    let mut made_anew = one.head().identity;
    made_anew.topic = "laneway.delay.log/2".to_owned();
    let why = restored(&backup, &made_anew).await.unwrap_err();
    assert!(matches!(why, Unused::OtherLog), "{why:?}");
    let mut unknown = one.head().identity;
    unknown.cluster.push('x');
    let why = restored(&backup, &unknown).await.unwrap_err();
    assert!(matches!(why, Unused::None), "{why:?}");

    // The log of one is made anew, and its epochs begin at 1 again.
    let anew = Log::new(made_anew);
    anew.submit(1, 10);
    drop(copy);
    let copy = anew.backed_up(&backup);
    wait_for!({
        anew.tick(&copy);
        anew.is_copied(&backup).await
    });
    assert!(two.is_copied(&second).await);
    assert!(other.is_whole());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_another_kind_give_way() {
    let url = needs::service!("redis");
    copied!(url, log, backup, copy);
    for name in ["meta", "row", "due", "with", "workers"] {
        let refills = backup.stats().refills;
        let place = key(&log, name);
        let () = ask(&url, &["SET", &place, "of another program"]).await;
        wait_for!({
            log.tick(&copy);
            backup.stats().refills > refills
        });
        wait_for!({
            log.tick(&copy);
            log.is_copied(&backup).await
        });
    }
    assert_eq!(backup.trouble(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_is_kept_in_redis_alone_does_not_hold_for_ever() {
    let url = needs::service!("redis");
    let log = Log::new(identity());
    log.submit(1, 10);
    // Of a log that has gone back since.
    let later = log.backed_up(&support::backup(&url));
    wait_for!({
        log.tick(&later);
        later.is_whole()
    });
    drop(later);
    let () = ask(&url, &["HSET", &key(&log, "meta"), "epoch", "99"]).await;
    let mut options = RedisOptions::new(&url).unwrap();
    options.seize_after = Duration::from_secs(1);
    let backup = Backup::open(options).unwrap();
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    assert!(backup.stats().refused >= 1);
}

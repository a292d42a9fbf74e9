//! A Redis that is killed, wiped, silent, full of rights, encrypted or a cluster.

mod support;

use std::time::{Duration, Instant};

use laneway_backup::{Backup, RedisOptions, Unused};
use support::server::Server;
use support::{Log, ask, backup, identity};
use tokio::net::TcpListener;
use tokio::time::timeout;
use waiting::wait_for;

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_wiped_is_filled_again() {
    let server = own_redis!(Server::plain);
    let url = server.url();
    let log = Log::new(identity());
    let backup = backup(&url);
    let copy = log.backed_up(&backup);
    for number in 0..3_000 {
        log.submit(number, 100);
        if number % 50 == 0 {
            log.note(&copy);
            tokio::task::yield_now().await;
        }
        if number % 1_000 == 500 {
            wait_for!({
                log.tick(&copy);
                copy.is_whole()
            });
            let () = ask(&url, &["FLUSHALL"]).await;
        }
    }
    log.note(&copy);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    assert!(backup.stats().refills >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_costs_bounded_memory() {
    let mut server = own_redis!(Server::plain);
    let mut options = support::options(&server.url());
    options.buffer_bytes = 1 << 20;
    let backup = Backup::open(options).unwrap();
    let log = Log::new(identity());
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        copy.is_whole()
    });
    server.kill();
    let begun = Instant::now();
    let mut most = 0;
    for number in 0..3_000 {
        log.submit(number, 1_000);
        log.note(&copy);
        most = most.max(copy.waiting_bytes());
    }
    assert!(most <= 1 << 20, "{most}");
    assert!(backup.stats().dropped >= 1);
    // Nothing waited: a wait for each of them would be many minutes.
    assert!(begun.elapsed() < Duration::from_mins(1));
    server.resume();
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_absence_is_made_up_for_without_filling() {
    let mut server = own_redis!(Server::plain);
    let backup = backup(&server.url());
    let log = Log::new(identity());
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    // What was written before is on its disk.
    let () = ask(&server.url(), &["CONFIG", "SET", "appendfsync", "always"]).await;
    server.kill();
    for number in 0..100 {
        log.submit(number, 100);
        log.note(&copy);
    }
    server.resume();
    wait_for!(log.is_copied(&backup).await);
    assert_eq!(backup.stats().refills, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_never_answers_is_waited_for_by_the_backup_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            taken.push(connection);
        }
    });
    // It waits for half a second each time.
    let begun = Instant::now();
    let backup = Backup::open(RedisOptions::new(&url).unwrap()).unwrap();
    let log = Log::new(identity());
    let copy = log.backed_up(&backup);
    for number in 0..1_000 {
        log.submit(number, 100);
        log.note(&copy);
    }
    // The owner has not waited: that would be many minutes.
    assert!(begun.elapsed() < Duration::from_mins(1));
    let identity = log.head().identity;
    let restoring = support::restored(&backup, &identity);
    let restored = timeout(Duration::from_mins(1), restoring).await;
    assert!(restored.expect("it gives up").is_err());
    wait_for!(backup.stats().failures >= 1);
    silent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_few_rights_is_enough() {
    let server = own_redis!(Server::plain);
    let log = Log::new(identity());
    let keys = format!("~{}:*", log.head().identity.cluster);
    let mut rights = vec!["ACL", "SETUSER", "laneway", "on", ">hidden", &keys];
    rights.extend(["-@all", "+eval", "+evalsha", "+script|load", "+ping"]);
    rights.extend(["+@read", "+@hash", "+@sortedset", "+@set", "+unlink"]);
    rights.extend(["+client", "+hello"]);
    let () = ask(&server.url(), &rights).await;
    let () = ask(&server.url(), &["ACL", "SETUSER", "default", "off"]).await;

    log.submit(1, 10);
    let url = format!("redis://laneway:hidden@127.0.0.1:{}", server.port);
    let backup = backup(&url);
    assert!(!format!("{backup:?}").contains("hidden"));
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    let wrong = support::backup(&format!("redis://laneway:wrong@127.0.0.1:{}", server.port));
    let error = support::restored(&wrong, &log.head().identity).await;
    assert!(matches!(error.unwrap_err(), Unused::Redis(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_the_keys_of_a_shard_in_one_slot() {
    let server = own_redis!(|port| {
        let mut arguments = Server::plain(port);
        arguments.extend(["--cluster-enabled".to_owned(), "yes".to_owned()]);
        arguments
    });
    let () = ask(&server.url(), &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    wait_for!({
        let info: String = ask(&server.url(), &["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    });
    let log = Log::new(identity());
    for number in 0..500 {
        log.submit(number, 100);
    }
    for number in 0..10 {
        log.begin(number, 1, support::WORKER);
    }
    let url = format!("redis+cluster://127.0.0.1:{}", server.port);
    let backup = backup(&url);
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
    let keys: Vec<String> = ask(&server.url(), &["KEYS", "*"]).await;
    assert_eq!(keys.len(), 6, "{keys:?}");
    let mut slots = Vec::new();
    for key in &keys {
        slots.push(ask::<u64>(&server.url(), &["CLUSTER", "KEYSLOT", key]).await);
    }
    slots.dedup();
    assert_eq!(slots.len(), 1, "{keys:?}");
    let questions = backup.questions(&log.head().identity.cluster, 1);
    let handed = questions.worker_messages(support::WORKER, None, 100);
    assert_eq!(handed.await.unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked_against_the_given_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = own_redis!(|port| {
        let mut arguments = Server::plain(0);
        let tls = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", certificate.display().to_string()),
            ("--tls-key-file", key.display().to_string()),
            ("--tls-ca-cert-file", certificate.display().to_string()),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        for (option, value) in tls {
            arguments.extend([option.to_owned(), value]);
        }
        arguments
    });
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let mut options = support::options(&url);
    let log = Log::new(identity());
    log.submit(1, 10);
    let stranger = Backup::open(options.clone()).unwrap();
    let refused = support::restored(&stranger, &log.head().identity).await;
    assert!(refused.is_err());

    options.authorities = Some(made.cert.pem().into_bytes());
    let trusting = Backup::open(options).unwrap();
    assert!(trusting.look().await.is_ok());

    let named = |file: &std::path::Path| format!("{url}?ca={}", file.display());
    let missing = RedisOptions::new(&named(&folder.path().join("none.pem"))).unwrap();
    let error = Backup::open(missing).unwrap_err().to_string();
    assert!(error.contains("none.pem"), "{error}");
    let backup = backup(&named(&certificate));
    let copy = log.backed_up(&backup);
    wait_for!({
        log.tick(&copy);
        log.is_copied(&backup).await
    });
}

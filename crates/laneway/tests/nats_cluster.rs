//! Three servers that keep copies of everything: one of them may be gone at any time.

mod nats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway::Bus;
use tokio::time::sleep;

use nats::ports;
use nats::server::NatsServer;
use nats::{SOON, Starts, declare, event, fresh, publish, settled};
use waiting::wait_for;

/// Servers that know each other.
fn cluster(program: &str) -> Vec<NatsServer> {
    let ports: [u16; 3] = ports::free();
    let routes: Vec<_> = ports
        .iter()
        .map(|port| format!("\"nats://127.0.0.1:{port}\""))
        .collect();
    let routes = routes.join(", ");
    let start = |port: &u16| {
        NatsServer::start(program, |_| {
            format!(
                "server_name: s{port}\n\
                 cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
            )
        })
    };
    ports.iter().map(start).collect()
}

async fn open(servers: &[NatsServer]) -> Bus {
    let addresses: Vec<_> = servers.iter().map(NatsServer::address).collect();
    let address = fresh(&addresses.join(","), "&replicas=3");
    let bus = Bus::builder().deadline(Duration::from_mins(1));
    bus.open(&address).await.expect("the cluster can be used")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_server_may_be_killed() {
    const KEYS: u64 = 20;
    needs::slow!();
    let mut servers = cluster(&needs::service!("nats_bin"));
    // At once: that the servers have yet to find each other is not for the user to wait for.
    let bus = open(&servers).await;
    declare(&bus, "orders", 4).await;
    let starts = Starts::default();
    let seen = starts.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note("one", &event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    let over = Arc::new(AtomicBool::new(false));
    let publishing: Vec<_> = (0..KEYS)
        .map(|key| {
            let (bus, over) = (bus.clone(), over.clone());
            tokio::spawn(async move {
                let mut number = 0;
                while !over.load(Ordering::SeqCst) {
                    publish(&bus, "orders", &event(&format!("key-{key}"), number)).await;
                    number += 1;
                    sleep(Duration::from_millis(10)).await;
                }
                number
            })
        })
        .collect();
    for server in &mut servers {
        let before = starts.distinct();
        wait_for!(starts.distinct() > before + 100, "it is at it");
        server.kill();
        let before = starts.distinct();
        wait_for!({ starts.distinct() > before + 100 }, "the others go on");
        server.resume();
    }
    over.store(true, Ordering::SeqCst);
    let mut count = 0;
    for published in publishing {
        count += published.await.expect("no panic");
    }
    settled(&bus, "orders").await;
    starts.assert_in_order();
    assert_eq!(starts.distinct(), usize::try_from(count).expect("small"));
    bus.close(SOON).await.expect("closed");
}

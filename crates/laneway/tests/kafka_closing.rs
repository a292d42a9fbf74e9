//! Closing while the broker is away: it takes as long as its deadline says, and a little more.

mod kafka;

use std::sync::mpsc;
use std::time::{Duration, Instant};
use waiting::wait_for;

use laneway::Bus;
use tokio::runtime::Runtime;

use kafka::server::{KafkaServer, free_ports};
use kafka::{declare, event, open, publish};

const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The deadline, and what saying good-bye may take, on a machine that is busy. One partition after the other, with the
/// deadline of a call each, would be minutes.
const CLOSED_WITHIN: Duration = Duration::from_secs(45);

/// A question that was asked before the broker went away has an end.
const ENDS_WITHIN: Duration = Duration::from_mins(2);

const GONE_WITHIN: Duration = Duration::from_mins(2);

/// A bus that has handled something.
async fn at_work(address: &str, topic: &str) -> Bus {
    let bus = open(&format!("kafka://{address}")).await;
    declare(&bus, topic, 8).await;
    let orders = bus.subscribe_envelope(topic, async |_| Ok(())).await;
    let orders = orders.expect("subscribed");
    for number in 0..16 {
        publish(&bus, topic, &event(&format!("key-{number}"), 0)).await;
    }
    wait_for!(orders.stats().handled == 16, "handled");
    bus
}

async fn closes_in_time(bus: Bus, away: &str) {
    let began = Instant::now();
    // It cannot say good-bye, and may say so.
    let _ = bus.close(CLOSE_WITHIN).await;
    let took = began.elapsed();
    assert!(took < CLOSED_WITHIN, "{away}: {took:?}");
}

#[test]
fn closing_keeps_its_deadline_while_the_broker_is_away() {
    needs::slow!();
    let program = needs::service!("kafka_bin");
    let [port] = free_ports();
    let settings =
        format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:CONTROLLER_PORT\n");
    let mut server = KafkaServer::start(&program, port, &settings, &[]);
    let address = format!("127.0.0.1:{port}");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (one, two) = (
            at_work(&address, "orders").await,
            at_work(&address, "visits").await,
        );
        // It takes what is sent, and answers nothing.
        server.signal("STOP");
        closes_in_time(one, "frozen").await;
        server.kill();
        closes_in_time(two, "killed").await;
    });
    // What a program does at its end. It waits for what blocks its threads.
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        drop(runtime);
        sender.send(())
    });
    let ended = ended.recv_timeout(ENDS_WITHIN);
    assert!(ended.is_ok(), "the program does not end");
    // In a program that goes on no client stays a member, with partitions that it does not read.
    let deadline = Instant::now() + GONE_WITHIN;
    while members() > 0 {
        assert!(Instant::now() < deadline, "clients are left");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// How many threads there are that poll clients of groups.
fn members() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let names = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.ok()
    });
    names.filter(|name| name.trim() == "laneway-kafka").count()
}

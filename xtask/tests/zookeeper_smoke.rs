//! `ZooKeeper` is up: it serves requests, and says in which mode.

mod wire;

use std::io::Read;

#[test]
fn it_is_serving() {
    let mut zookeeper = wire::connect(&needs::service!("zookeeper"));
    wire::send(&mut zookeeper, b"srvr");
    let mut answer = String::new();
    zookeeper
        .read_to_string(&mut answer)
        .expect("ZooKeeper answers and hangs up");
    assert!(answer.starts_with("Zookeeper version: "), "{answer}");
    assert!(answer.contains("\nMode: "), "{answer}");
}

//! `laneway move` to a cluster on Kafka.

mod cluster;
mod moved;

use cluster::Cluster;

#[test]
fn every_message_is_moved_once_however_often_it_is_killed() {
    let kafka = needs::service!("kafka");
    let zookeeper = needs::service!("zookeeper");
    let cluster = Cluster::on_kafka(&kafka, &zookeeper);
    moved::a_move_that_is_killed_again_and_again(&cluster, moved::pending(1_000), &[2, 10]);
}

#[test]
fn a_message_with_the_id_of_another_one_is_not_moved() {
    let kafka = needs::service!("kafka");
    let zookeeper = needs::service!("zookeeper");
    let cluster = Cluster::on_kafka(&kafka, &zookeeper);
    moved::an_id_that_is_taken(&cluster);
}

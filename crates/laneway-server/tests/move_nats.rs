//! `laneway move` to a cluster on NATS.

mod cluster;
mod moved;

use cluster::Cluster;

#[test]
fn every_message_is_moved_once_however_often_it_is_killed() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    moved::a_move_that_is_killed_again_and_again(&cluster, moved::pending(6_000), &[1, 4, 9, 15]);
}

#[test]
fn a_message_with_the_id_of_another_one_is_not_moved() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    moved::an_id_that_is_taken(&cluster);
}

//! The short version of the fault run of a cluster on NATS.

mod short;

#[test]
fn any_process_of_a_cluster_dies_freezes_and_restarts() {
    needs::slow!();
    needs::service!("nats");
    // Building it is not a part of what must be over soon.
    let this = env!("CARGO_BIN_EXE_laneway-faults");
    laneway_faults::cluster::program(this.as_ref()).expect("the program laneway");
    short::passes(&["cluster"]);
}

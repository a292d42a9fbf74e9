//! Contract 1, the engine of lanes: promise by promise, each test named after what it promises.

#[path = "lanes/support.rs"]
mod support;

#[path = "lanes/p1_lanes.rs"]
mod p1_lanes;
#[path = "lanes/p2_bounds.rs"]
mod p2_bounds;
#[path = "lanes/p3_scopes.rs"]
mod p3_scopes;
#[path = "lanes/p4_slow_and_failing_keys.rs"]
mod p4_slow_and_failing_keys;
#[path = "lanes/p5_turns.rs"]
mod p5_turns;
#[path = "lanes/p6_blocked_threads.rs"]
mod p6_blocked_threads;
#[path = "lanes/p6_supervision.rs"]
mod p6_supervision;
#[path = "lanes/p7_events_and_figures.rs"]
mod p7_events_and_figures;
#[path = "lanes/p8_closing.rs"]
mod p8_closing;

#[path = "lanes/admission.rs"]
mod admission;
#[path = "lanes/ancestors.rs"]
mod ancestors;
#[path = "lanes/batches.rs"]
mod batches;
#[path = "lanes/blocking.rs"]
mod blocking;

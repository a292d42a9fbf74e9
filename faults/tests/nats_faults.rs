//! The short versions of the fault runs on NATS.

mod short;

short::short_runs! { "nats":
    a_server_is_killed "nats-server"
    publishers_and_members_are_killed "nats-client"
    a_member_is_frozen "nats-freeze"
    members_come_and_go "nats-members"
    one_server_of_three_is_killed "nats-cluster"
    anything_happens_in_any_order "life" "--store" "nats"
}

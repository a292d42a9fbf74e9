//! The short versions of the fault runs on Kafka.

mod short;

short::short_runs! { "kafka":
    a_server_is_killed "kafka-server"
    publishers_and_members_are_killed "kafka-client"
    a_member_is_frozen "kafka-freeze"
    a_member_is_frozen_where_brokers_decide "kafka-freeze-deciding"
    one_server_of_three_is_killed "kafka-cluster"
    one_event_is_poison "kafka-poison"
    anything_happens_in_any_order "life" "--store" "kafka"
}

//! What every broker must do, whatever it is made of: one behaviour a function, generic over the
//! broker.
//!
//! A broker passes if `conformance!(ItsFixture)` does. One whose records outlive the bus adds
//! `conformance_across_reopening!(ItsFixture)`, and one that is alone with them
//! `conformance_of_forgetting!(ItsFixture)`. To add a behaviour, write a function that takes a
//! [`Fixture`] and add its name to the list below; it then holds for all of them.
//!
//! Behaviours use real time, since no broker but the one in memory keeps to a virtual clock. They
//! wait for what must happen, with a deadline, and never for time to pass.

pub(crate) mod batches;
pub(crate) mod closing;
pub(crate) mod context;
pub(crate) mod delivery;
pub(crate) mod foreign;
#[allow(dead_code, reason = "a server leaves these out")]
pub(crate) mod forgetting;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod hot;
pub(crate) mod kinds;
pub(crate) mod letters;
pub(crate) mod limits;
pub(crate) mod parked;
pub(crate) mod plain;
#[allow(dead_code, reason = "a broker that keeps nothing leaves these out")]
pub(crate) mod reopening;
pub(crate) mod soak;
pub(crate) mod stopping;
pub(crate) mod support;
pub(crate) mod topics;

use std::future::Future;
use std::time::Duration;

use laneway::{Bus, BusBuilder, Error};

/// A broker under test. Each behaviour has one for itself.
pub(crate) trait Fixture: Send + Sync + Sized + 'static {
    /// Why it cannot be tested here, if something is missing.
    fn missing() -> Option<String> {
        None
    }

    /// A place for topics and records, empty.
    fn new() -> Self;

    /// Opens a bus at that place.
    fn open(&self, builder: BusBuilder) -> impl Future<Output = Result<Bus, Error>> + Send;

    /// How many partitions a topic is to have where a behaviour can be seen with any number of them.
    /// `usual` are those that show it best.
    fn partitions(&self, usual: u32) -> u32 {
        usual
    }

    /// The largest body that it has to take. Behaviours at the exact limit of a server are in tests of that server.
    fn largest(&self) -> usize {
        900_000
    }

    /// Opens a bus with nothing special about it.
    fn bus(&self) -> impl Future<Output = Bus> + Send {
        async {
            let bus = self.open(Bus::builder()).await;
            bus.expect("the broker can be opened")
        }
    }
}

/// Runs a behaviour with a deadline.
pub(crate) async fn hold<F: Fixture, Fut: Future<Output = ()>>(behaviour: impl FnOnce(F) -> Fut) {
    let deadline = Duration::from_mins(5);
    tokio::time::timeout(deadline, behaviour(F::new()))
        .await
        .expect("the behaviour comes to its end");
}

macro_rules! behaviours {
    ($fixture:ident: $($module:ident { $($behaviour:ident)+ })+) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $behaviour() {
                if let Some(why) = <crate::$fixture as crate::conformance::Fixture>::missing() {
                    needs::skip!(why);
                    return;
                }
                let behaviour = |at: crate::$fixture| async move {
                    crate::conformance::$module::$behaviour(&at).await;
                };
                crate::conformance::hold(behaviour).await;
            })+
        })+
    };
}
pub(crate) use behaviours;

macro_rules! conformance {
    ($fixture:ident) => {
        crate::conformance::behaviours! { $fixture:
            delivery {
                order_holds_under_failures_panics_and_time_outs
                keys_run_in_parallel
                a_slow_key_delays_only_itself
                a_slow_key_with_a_long_backlog_delays_only_itself
                a_key_that_waits_for_its_retry_delays_only_itself
                events_wait_for_a_handler
                a_batch_of_events_is_published_in_order
                a_record_larger_than_all_room_is_handled
            }
            hot {
                keys_delay_only_themselves_whatever_their_handlers_take
                fifty_thousand_events_in_front_delay_only_their_key_which_catches_up
            }
            groups {
                a_second_subscription_is_refused
                a_place_is_given_up_once
                two_groups_see_everything
                a_group_starts_at_the_oldest_or_now
                a_group_that_has_read_goes_on_where_it_was
                names_of_groups_are_checked
            }
            letters {
                an_exhausted_event_becomes_a_dead_letter_and_its_key_goes_on
                a_fatal_failure_is_not_tried_again
                letters_are_replayed_in_order_to_the_group_that_failed
                a_letter_is_replayed_once
                a_replayed_event_that_fails_again_is_a_letter_again
                dropped_letters_are_gone
                a_record_that_is_no_event_is_a_dead_letter_at_once
                an_aggregate_id_is_found_where_it_is
                a_payload_of_another_type_is_a_dead_letter_at_once
            }
            foreign {
                whatever_others_write_is_handled_or_put_aside_with_a_reason
                records_as_large_as_they_may_be_are_handled_or_put_aside
            }
            parked {
                later_events_of_a_parked_key_follow_it
                a_released_key_goes_on_in_order
                a_key_that_fails_again_stays_parked
                a_release_survives_failures_that_go_away
                more_than_one_request_can_release_is_released
                a_key_is_parked_for_one_group
                a_key_stays_parked_for_the_next_subscription
                a_parked_event_can_be_dropped
                an_event_named_by_its_record_key_is_released
                a_key_is_parked_by_its_aggregate_id_whatever_the_record_key_is
            }
            stopping {
                a_subscription_stops_with_nothing_settled_and_tells_why
                a_stopped_subscription_can_be_followed_by_another
            }
            kinds {
                kinds_never_mix
                what_cannot_be_sent_is_refused_before_anything_is
                reserved_topics_are_refused
            }
            topics {
                create_only_creates_and_changes_nothing
                create_or_update_changes_what_may_be_changed
                validate_only_touches_nothing
                skip_takes_topics_as_they_are
                presets_work_on_every_broker
                names_are_checked
                topics_are_listed_described_and_deleted
                a_deleted_topic_leaves_nothing_behind
                a_topic_in_use_is_not_deleted
                a_subscription_goes_on_when_its_topic_is_updated
                a_topic_grows_only_while_nobody_reads_it
            }
            health {
                the_backlog_is_what_is_not_settled
                health_tells_of_every_subscription
                figures_count_what_happened
            }
            limits {
                publishing_keeps_to_its_rate
                handling_keeps_to_its_rate
                plain_messages_keep_to_their_rate
                a_rate_that_is_too_slow_for_the_deadline_is_an_error
                an_event_id_is_handled_once
                an_event_id_is_handled_once_in_a_batch
                an_attempt_over_its_time_limit_is_cancelled_and_tried_again
            }
            batches {
                a_batch_has_events_of_one_aggregate_in_order
                what_a_failed_batch_has_done_is_not_done_again
            }
            plain {
                every_message_is_handled_once
                a_failed_message_is_counted_and_does_not_come_again
                settings_of_events_are_refused_for_messages
                messages_run_in_parallel
                messages_go_to_the_partitions_in_turn
                closing_loses_and_repeats_nothing
                what_does_not_fit_into_the_deadline_is_reported
                a_rate_limit_leaves_messages_in_the_broker
            }
            context {
                the_context_says_where_an_event_comes_from
                headers_travel_with_a_message
                a_trace_goes_from_publisher_to_handler_and_on
                every_owner_has_a_higher_epoch
            }
            closing {
                closing_finishes_what_runs_and_reports_the_rest
                a_handler_over_the_deadline_is_cancelled
                a_subscription_is_closed_alone
                a_group_is_left_by_whoever_closes
                nothing_that_was_settled_runs_again
                closing_goes_on_when_its_caller_gives_up
                a_closed_bus_says_so
            }
            soak {
                whatever_happens_every_key_is_handled_in_order_and_once
            }
        }
    };
}
pub(crate) use conformance;

#[allow(unused_macros, reason = "a broker that keeps nothing leaves these out")]
macro_rules! conformance_across_reopening {
    ($fixture:ident) => {
        crate::conformance::behaviours! { $fixture:
            reopening {
                a_reopened_bus_goes_on_where_it_was
                what_was_done_above_the_lowest_unfinished_does_not_run_again
                a_crash_loses_nothing_and_keeps_the_order
                topics_are_as_they_were_declared
                dead_letters_survive
                parked_keys_stay_parked
                a_crash_parks_nothing_twice
                whatever_happens_and_crashes_no_key_skips_an_event
                from_now_on_means_the_same_afterwards
                epochs_go_on
            }
        }
    };
}
#[allow(
    unused_imports,
    reason = "a broker that keeps nothing leaves these out"
)]
pub(crate) use conformance_across_reopening;

#[allow(unused_macros, reason = "a server leaves these out")]
macro_rules! conformance_of_forgetting {
    ($fixture:ident) => {
        crate::conformance::behaviours! { $fixture:
            forgetting {
                messages_in_memory_are_gone
                a_parked_key_loses_nothing_when_its_topic_in_memory_begins_anew
            }
        }
    };
}
#[allow(unused_imports, reason = "a server leaves these out")]
pub(crate) use conformance_of_forgetting;

//! What a log must do on every broker: one behaviour a function, generic over the broker.

pub(crate) mod behaviours;

use std::time::Duration;

use bytes::Bytes;
use laneway::Bus;
use laneway::log::{Fault, Follower, Log};

/// Nothing takes longer, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) const TOPIC: &str = "laneway.delay.log";

pub(crate) const PARTITIONS: u32 = 3;

/// A broker under test. Each behaviour has one for itself.
pub(crate) trait Fixture: Send + Sync + Sized + 'static {
    /// Why it cannot be tested here, if something is missing.
    fn missing() -> Option<String> {
        None
    }

    /// A place for topics and records, empty.
    fn new() -> Self;

    /// Where a bus finds it.
    fn address(&self) -> String;

    /// Whether its records outlive the bus.
    fn is_kept(&self) -> bool {
        true
    }
}

pub(crate) async fn open(at: &impl Fixture) -> (Bus, Log) {
    let bus = Bus::open(&at.address()).await;
    let bus = bus.expect("the broker can be opened");
    let log = bus.log(TOPIC, PARTITIONS).await;
    (bus, log.expect("the log can be opened"))
}

pub(crate) fn bytes(number: usize) -> Bytes {
    Bytes::from(format!("record {number}"))
}

pub(crate) fn numbered(numbers: std::ops::Range<usize>) -> Vec<Bytes> {
    numbers.map(bytes).collect()
}

/// So many records, as a follower gives them.
pub(crate) async fn next(follower: &mut Follower, count: usize) -> Vec<(u64, Bytes)> {
    let mut records = Vec::new();
    let reading = async {
        while records.len() < count {
            records.extend(follower.next().await.expect("records"));
        }
    };
    let read = tokio::time::timeout(SOON, reading).await;
    assert!(read.is_ok(), "{} of {count} came", records.len());
    assert_eq!(records.len(), count, "too many");
    assert!(records.is_sorted_by(|one, next| one.0 < next.0));
    records
}

/// The bodies of records.
pub(crate) fn bodies(records: Vec<(u64, Bytes)>) -> Vec<Bytes> {
    records.into_iter().map(|(_, record)| record).collect()
}

/// Why a follower does not go on.
pub(crate) async fn fault(follower: &mut Follower) -> Fault {
    let asking = async {
        loop {
            match follower.next().await {
                Err(laneway::log::Error::Fault(fault)) => return fault,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(records) => panic!("it gave {records:?}"),
            }
        }
    };
    let asked = tokio::time::timeout(SOON, asking).await;
    asked.expect("the follower says what is wrong")
}

macro_rules! tests_of {
    ($fixture:ident: $($behaviour:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $behaviour() {
            if let Some(why) = <$fixture as log::Fixture>::missing() {
                needs::skip!(why);
                return;
            }
            let at = <$fixture as log::Fixture>::new();
            let holding = log::behaviours::$behaviour(&at);
            let held = tokio::time::timeout(std::time::Duration::from_mins(5), holding).await;
            held.expect("the behaviour comes to its end");
        })+
    };
}
pub(crate) use tests_of;

macro_rules! of_every_log {
    ($fixture:ident) => {
        log::tests_of! { $fixture:
            what_is_appended_is_followed_in_order
            appends_that_overlap_take_turns
            bounds_are_those_of_the_records
            exactly_one_record_is_read
            a_follower_begins_in_the_middle
            a_partition_is_followed_twice
            a_follower_that_is_given_up_loses_nothing
            what_was_trimmed_is_not_followed_and_the_rest_stays
            a_follower_that_a_trim_overtook_says_so
            a_follower_before_the_end_is_told_of_one_behind_it
            a_log_made_anew_is_another_one
            what_others_wrote_comes_through
            records_up_to_the_limit_are_taken
            other_settings_are_refused
            a_closed_bus_refuses_and_ends_followers
            a_log_is_there_when_the_bus_is_opened_again
        }
    };
}
pub(crate) use of_every_log;

//! A message of the store as a row of the cluster.

use std::collections::BTreeMap;

use laneway_cluster::moving::Arrival;
use laneway_cluster::record::{Cause, Event, HistoryEvent, Image, RequestDigest, State};
use laneway_delay::store::Leaving;
use laneway_delay::{DeathCause, Message};
use laneway_rpc::convert::{self, Parts};

/// The same message, as an owner has it.
///
/// That its receiver was known to take nothing for a while is left out of its history: a cluster does not remember that.
pub(super) fn arrival(leaving: Leaving) -> Arrival {
    let Leaving {
        message,
        fingerprint,
    } = leaving;
    let Message {
        id,
        topic,
        record,
        accepted,
        payload,
        content_type,
        target,
        retry,
        metadata,
        history,
    } = message;
    let due = record.due();
    let (state, next) = match record.state() {
        laneway_delay::State::Scheduled { at } => (State::Scheduled, at),
        laneway_delay::State::Delivered { at } => (State::Delivered { at }, due),
        laneway_delay::State::Dead { at, cause } => {
            let cause = match cause {
                DeathCause::Rejected => Cause::Rejected,
                _ => Cause::Exhausted,
            };
            (State::Dead { at, cause }, due)
        }
        laneway_delay::State::Withdrawn { at } if record.is_in_doubt() => {
            (State::Stopped { at }, due)
        }
        laneway_delay::State::Withdrawn { at } => (State::Withdrawn { at }, due),
        // `Firing`, which is never stored, and what is not known here: it comes again, and may have been delivered.
        _ => (State::Scheduled, due),
    };
    let is_known = record.state().is_final()
        || matches!(record.state(), laneway_delay::State::Scheduled { .. });
    let parts = Parts {
        target,
        payload,
        content_type,
        metadata,
        retry,
    };
    let image = Image {
        state,
        due,
        next,
        accepted,
        digest: RequestDigest::of_fingerprint(fingerprint),
        topic,
        body: convert::body(&parts),
        attempts: record.attempts(),
        failures: record.failures(),
        doubts: BTreeMap::new(),
        doubt_stays: record.is_in_doubt() || !is_known,
        answers: BTreeMap::new(),
        history: history.into_iter().filter_map(event).collect(),
    };
    Arrival { id, image }
}

fn event(event: laneway_delay::Event) -> Option<Event> {
    use laneway_delay::HistoryEvent as Told;
    let what = match event.what {
        Told::Extended { due } => HistoryEvent::Extended(due),
        Told::Failed { attempt, reason } => HistoryEvent::Failed(attempt, reason),
        Told::Delivered { attempt } => HistoryEvent::Delivered(attempt),
        Told::Died => HistoryEvent::Died,
        Told::Withdrawn => HistoryEvent::Withdrawn,
        Told::Stopped => HistoryEvent::Stopped,
        Told::Replayed { of } => HistoryEvent::Replayed(of),
        _ => return None,
    };
    Some(Event { at: event.at, what })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use laneway_delay::{MessageId, Record, Target, Timestamp, Version};

    use super::*;

    fn leaving(state: laneway_delay::State, in_doubt: bool) -> Leaving {
        let due = Timestamp::from_millis(5_000);
        let record = Record::restore(Version::from_u64(4), due, 3, 2, state).in_doubt(in_doubt);
        Leaving {
            message: Message {
                id: MessageId::new("m").expect("an id"),
                topic: "t".to_owned(),
                record,
                accepted: Timestamp::from_millis(1_000),
                payload: Bytes::from("{}"),
                content_type: None,
                target: Target::callback("http://localhost/"),
                retry: None,
                metadata: BTreeMap::new(),
                history: vec![
                    laneway_delay::Event {
                        at: due,
                        what: laneway_delay::HistoryEvent::Postponed {
                            reason: "closed".to_owned(),
                        },
                    },
                    laneway_delay::Event {
                        at: due,
                        what: laneway_delay::HistoryEvent::Failed {
                            attempt: 3,
                            reason: "500".to_owned(),
                        },
                    },
                ],
            },
            fingerprint: 7,
        }
    }

    #[test]
    fn everything_that_a_message_went_through_is_kept() {
        let at = Timestamp::from_millis(9_000);
        let retrying = arrival(leaving(laneway_delay::State::Scheduled { at }, true)).image;
        assert_eq!(retrying.state, State::Scheduled);
        assert_eq!((retrying.due.as_millis(), retrying.next), (5_000, at));
        assert_eq!((retrying.attempts, retrying.failures), (3, 2));
        assert!(retrying.is_in_doubt());
        assert_eq!(retrying.history.len(), 1, "{:?}", retrying.history);
        let parts = convert::parts(retrying.body).expect("a body");
        assert_eq!(parts.payload, Bytes::from("{}"));

        let cause = DeathCause::Rejected;
        let dead = arrival(leaving(laneway_delay::State::Dead { at, cause }, false)).image;
        let cause = Cause::Rejected;
        assert_eq!(dead.state, State::Dead { at, cause });
        let withdrawn = laneway_delay::State::Withdrawn { at };
        let stopped = arrival(leaving(withdrawn, true)).image;
        assert_eq!(stopped.state, State::Stopped { at });
        let withdrawn = arrival(leaving(withdrawn, false)).image;
        assert_eq!(withdrawn.state, State::Withdrawn { at });
    }
}

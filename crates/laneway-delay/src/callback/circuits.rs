//! The circuits of a host: one for the host, and one for each topic that it fails.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::breaker::{Admission, Breaker, Policy};
use super::error::HostHealth;
use crate::ration::Ration;

/// How many topics of a host may fail on their own. Further ones have no circuit.
const TOPICS: usize = 64;

/// How often circuits are logged.
static LOGGED: Ration = Ration::new(20);

#[derive(Debug, Default)]
pub(super) struct Circuits {
    host: Breaker,
    /// Of topics that failed.
    topics: HashMap<String, Breaker>,
    failed_at: Option<Instant>,
}

/// A circuit is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct CircuitOpen {
    pub(super) wait: Duration,
    /// Whether it is that of the topic.
    pub(super) of_topic: bool,
}

/// A call was let through.
#[derive(Clone, Debug)]
pub(super) struct Admitted {
    topic: String,
    policy: Policy,
    is_probe_of_host: bool,
    is_probe_of_topic: bool,
}

impl Circuits {
    /// Which circuit would refuse a call now. Changes nothing.
    pub(super) fn refusing(
        &self,
        topic: &str,
        now: Instant,
        policy: &Policy,
    ) -> Option<CircuitOpen> {
        let of = |of_topic| move |wait| CircuitOpen { wait, of_topic };
        let host = self.host.wait(now, policy).map(of(false));
        host.or_else(|| self.topics.get(topic)?.wait(now, policy).map(of(true)))
    }

    pub(super) fn admit(
        &mut self,
        topic: &str,
        now: Instant,
        policy: &Policy,
    ) -> Result<Admitted, CircuitOpen> {
        // Both are asked before one of them is changed.
        if let Some(open) = self.refusing(topic, now, policy) {
            return Err(open);
        }
        let is_probe = |breaker: &mut Breaker| breaker.admit(now, policy) == Admission::Probe;
        Ok(Admitted {
            topic: topic.to_owned(),
            policy: *policy,
            is_probe_of_host: is_probe(&mut self.host),
            is_probe_of_topic: self.topics.get_mut(topic).is_some_and(is_probe),
        })
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, host: &str, call: &Admitted, health: HostHealth, now: Instant) {
        let Admitted { topic, policy, .. } = call;
        match health {
            HostHealth::Works => {
                self.host_answered(host);
                if self
                    .topics
                    .remove(topic)
                    .is_some_and(|mut it| it.succeeded())
                {
                    log_closed(host, topic);
                }
            }
            HostHealth::Fails => {
                self.host_answered(host);
                self.failed_at = Some(now);
                if self.topics.len() < TOPICS || self.topics.contains_key(topic) {
                    let breaker = self.topics.entry(topic.clone()).or_default();
                    if let Some(wait) = breaker.failed(now, policy) {
                        log_opened(host, topic, wait);
                    }
                }
            }
            HostHealth::IsAway => {
                self.failed_at = Some(now);
                if let Some(wait) = self.host.failed(now, policy) {
                    log_opened(host, "", wait);
                }
                self.abandon_topic(call, now);
            }
            HostHealth::Unknown => {
                if call.is_probe_of_host {
                    self.host.abandoned(now);
                }
                self.abandon_topic(call, now);
            }
        }
    }

    fn host_answered(&mut self, host: &str) {
        if self.host.succeeded() {
            log_closed(host, "");
        }
    }

    fn abandon_topic(&mut self, call: &Admitted, now: Instant) {
        if call.is_probe_of_topic
            && let Some(breaker) = self.topics.get_mut(&call.topic)
        {
            breaker.abandoned(now);
        }
    }

    /// Whether forgetting them would lose nothing.
    pub(super) fn is_pristine(&self) -> bool {
        self.host.is_pristine() && self.topics.is_empty()
    }

    /// When something failed the last time.
    pub(super) fn failed_at(&self) -> Option<Instant> {
        self.failed_at
    }

    /// How many let nothing through now.
    pub(super) fn open(&self, now: Instant) -> usize {
        let all = self.topics.values().chain([&self.host]);
        all.filter(|breaker| breaker.is_open(now)).count()
    }
}

fn log_opened(host: &str, topic: &str, wait: Duration) {
    if let Some(left_out) = LOGGED.take() {
        tracing::warn!(
            host,
            topic,
            ?wait,
            left_out,
            "circuit opened after failures: callbacks are postponed"
        );
    }
}

fn log_closed(host: &str, topic: &str) {
    if let Some(left_out) = LOGGED.take() {
        tracing::warn!(
            host,
            topic,
            left_out,
            "circuit closed: callbacks are sent again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        failures_to_open: 3,
        first_wait: Duration::from_secs(5),
        longest_wait: Duration::from_secs(15),
    };

    fn call(circuits: &mut Circuits, topic: &str, health: HostHealth, now: Instant) {
        let admitted = circuits.admit(topic, now, &POLICY).expect("let through");
        circuits.ended("host", &admitted, health, now);
    }

    #[test]
    fn a_topic_that_the_host_fails_does_not_stop_the_others() {
        let now = Instant::now();
        let mut circuits = Circuits::default();
        for _ in 0..3 {
            call(&mut circuits, "bad", HostHealth::Fails, now);
        }
        let open = circuits.admit("bad", now, &POLICY).expect_err("open");
        assert!(open.of_topic);
        assert_eq!(circuits.open(now), 1);
        for _ in 0..10 {
            call(&mut circuits, "good", HostHealth::Works, now);
        }
        let later = now + POLICY.first_wait;
        call(&mut circuits, "bad", HostHealth::Works, later);
        assert!(circuits.is_pristine());
    }

    #[test]
    fn a_host_that_does_not_answer_stops_all_topics_and_any_answer_closes_it() {
        let now = Instant::now();
        let mut circuits = Circuits::default();
        for topic in ["a", "b", "c"] {
            call(&mut circuits, topic, HostHealth::IsAway, now);
        }
        let open = circuits.admit("d", now, &POLICY).expect_err("open");
        assert!(!open.of_topic);
        call(
            &mut circuits,
            "a",
            HostHealth::Fails,
            now + POLICY.first_wait,
        );
        assert!(
            circuits
                .admit("d", now + POLICY.first_wait, &POLICY)
                .is_ok()
        );
    }

    #[test]
    fn calls_that_say_nothing_open_nothing_and_let_the_next_probe_go() {
        let now = Instant::now();
        let mut circuits = Circuits::default();
        for _ in 0..10 {
            call(&mut circuits, "a", HostHealth::Unknown, now);
        }
        assert!(circuits.is_pristine());
        for _ in 0..3 {
            call(&mut circuits, "a", HostHealth::IsAway, now);
        }
        let later = now + POLICY.first_wait;
        call(&mut circuits, "a", HostHealth::Unknown, later);
        call(&mut circuits, "a", HostHealth::Works, later);
    }
}

//! Which worker gets an attempt.

use laneway_cluster::balance::{Balancer, Worker};
use laneway_cluster::record::Instance;

use super::{Stream, Workers};

/// Topics whose balancers are remembered. Beyond that all begin anew.
const MOST_TOPICS: usize = 10_000;

impl Workers {
    /// A worker was chosen for an attempt that it does not get, of so many bytes.
    pub(crate) fn give_back(&self, worker: Instance, bytes: u64) {
        let mut state = self.state.lock();
        if let Some(stream) = state.stream(worker) {
            stream.credit += 1;
            stream.in_flight.give_back(bytes);
        }
    }

    /// Whether any worker can take an attempt now.
    pub(crate) fn any_room(&self) -> bool {
        let state = self.state.lock();
        let has_room = |link: &super::Link| {
            let stream = link.stream.as_ref();
            !link.is_draining && stream.is_some_and(Stream::has_room)
        };
        state.links.values().any(has_room)
    }

    /// A worker for an attempt of a message of this topic, of so many bytes, with its credit taken. `None`: no worker of the topic has room now.
    ///
    /// Of a topic whose workers live, no other worker gets anything, however long its own ones have no room. Where none of them
    /// lives any worker does: late is better than never, and another worker better than late.
    pub(crate) fn choose(&self, topic: &str, bytes: u64, except: &[Instance]) -> Option<Instance> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let placement = self.topics.placement(topic);
        let mut candidates = placement.mapping.candidates(&state.alive);
        let (links, entries) = (&state.links, &state.entries);
        let has_room = |worker: &Worker| {
            let link = entries.get(&worker.instance).and_then(|id| links.get(id));
            let stream = link.and_then(|link| link.stream.as_ref());
            stream.is_some_and(Stream::has_room)
        };
        candidates.retain(|worker| has_room(worker) && !except.contains(&worker.instance));
        if state.balancers.len() > MOST_TOPICS {
            state.balancers.clear();
        }
        let strategy = placement.strategy;
        let known = state.balancers.get(topic).map(Balancer::strategy);
        if known != Some(strategy) {
            let balancer = Balancer::new(strategy);
            state.balancers.insert(topic.to_owned(), balancer);
        }
        let balancer = state.balancers.get_mut(topic)?;
        let chosen = balancer.choose(&candidates, rand::random())?;
        let stream = state.stream(chosen)?;
        stream.credit -= 1;
        stream.in_flight.choose(bytes);
        Some(chosen)
    }
}

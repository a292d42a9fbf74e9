//! A link for each worker that the registry lists.

use std::sync::Arc;

use laneway_cluster::balance::Load;
use laneway_cluster::record::Instance;
use laneway_registry::{Directory, InstanceId, Registry, Role};
use tokio::task::JoinSet;

use super::{Connect, Link, State, Workers, link};
use crate::clocks::Measured;

/// The most workers that are remembered as removed: the oldest are forgotten first.
const MOST_REMOVED: usize = 10_000;

/// The process of an entry: both are the same 16 bytes, if the worker registered itself by what it says in its hello.
pub(crate) fn instance(id: InstanceId) -> Instance {
    let text = id.to_string();
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Instance(bytes)
}

/// Keeps links to all workers, until it is dropped.
pub(crate) async fn watch(workers: Arc<Workers>, registry: Registry, connector: Arc<dyn Connect>) {
    let mut directories = registry.watch(Role::Worker);
    let mut links = JoinSet::new();
    loop {
        let directory = directories.borrow_and_update().clone();
        for (id, address) in workers.listed(&directory) {
            let (workers, connector) = (workers.clone(), connector.clone());
            links.spawn(async move {
                link::keep(&workers, id, &address, &*connector).await;
            });
        }
        while links.try_join_next().is_some() {}
        if directories.changed().await.is_err() {
            // The registry is gone: the links that there are go on.
            return std::future::pending().await;
        }
    }
}

impl Workers {
    /// Notes what the registry lists. The workers that are new, with their addresses.
    fn listed(&self, directory: &Directory) -> Vec<(InstanceId, String)> {
        let mut state = self.state.lock();
        let mut new = Vec::new();
        state.is_current = directory.is_current();
        for listed in directory.instances() {
            if state.removed.contains(&listed.id) {
                continue;
            }
            let link = state.links.entry(listed.id).or_insert_with(|| {
                new.push((listed.id, listed.address.clone()));
                Link {
                    name: listed.name.clone(),
                    weight: listed.weight,
                    is_listed: true,
                    was_tried: false,
                    instance: None,
                    stream: None,
                    clock: Measured::default(),
                    load: Load::default(),
                    unsettled: 0,
                    is_draining: false,
                }
            });
            link.is_listed = true;
            link.weight = listed.weight;
        }
        let State { links, removed, .. } = &mut *state;
        for (id, link) in links {
            link.is_listed = directory.get(*id).is_some() && !removed.contains(id);
        }
        state.refresh();
        new
    }

    /// An operator has removed a worker. Its link notices at its next ping.
    pub(crate) fn remove(&self, id: InstanceId) {
        {
            let mut state = self.state.lock();
            if !state.removed.insert(id) {
                return;
            }
            while state.removed.len() > MOST_REMOVED {
                state.removed.pop_first();
            }
            if let Some(link) = state.links.get_mut(&id) {
                link.is_listed = false;
            }
        }
        self.died(id);
    }

    pub(super) fn is_removed(&self, id: InstanceId) -> bool {
        self.state.lock().removed.contains(&id)
    }

    /// Whether a worker without a stream is off the list, as far as can be said now.
    pub(super) fn is_off_the_list(&self, id: InstanceId) -> bool {
        let state = self.state.lock();
        let is_listed = state.links.get(&id).is_some_and(|link| link.is_listed);
        (state.is_current && !is_listed) || state.removed.contains(&id)
    }

    /// Forgets a worker that is off the list. `false`: it has come back meanwhile.
    pub(super) fn forget(&self, id: InstanceId) -> bool {
        let mut state = self.state.lock();
        if state.links.get(&id).is_some_and(|link| link.is_listed) {
            return false;
        }
        if let Some(instance) = state.links.remove(&id).and_then(|link| link.instance) {
            state.entries.remove(&instance);
        }
        state.refresh();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_and_its_process_are_the_same_bytes() {
        let id: InstanceId = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
        let expected = [
            0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff,
        ];
        assert_eq!(instance(id), Instance(expected));
    }
}

//! The instances of a role, as last heard.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::{Instance, InstanceId, Role};

/// The instances of a role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    instances: Arc<BTreeMap<InstanceId, Instance>>,
    is_current: bool,
}

impl Directory {
    /// The instances, in the order of their ids.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: InstanceId) -> Option<&Instance> {
        self.instances.get(&id)
    }

    /// Whether the server answers. If not, the instances are those that were there when it last did, and one that is
    /// missing, or that died since, cannot be told from others.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.is_current
    }
}

/// The directories of all roles.
#[derive(Debug)]
pub(crate) struct Directories([watch::Sender<Directory>; 4]);

impl Default for Directories {
    fn default() -> Self {
        Self(std::array::from_fn(|_| watch::Sender::default()))
    }
}

impl Directories {
    pub(crate) fn watch(&self, role: Role) -> watch::Receiver<Directory> {
        self.of(role).subscribe()
    }

    /// The server says that these are there.
    pub(crate) fn update(&self, role: Role, instances: Vec<Instance>) {
        let instances = instances
            .into_iter()
            .map(|instance| (instance.id, instance));
        let directory = Directory {
            instances: Arc::new(instances.collect()),
            is_current: true,
        };
        self.of(role).send_if_modified(|known| {
            let is_news = *known != directory;
            *known = directory;
            is_news
        });
    }

    /// The server does not answer: what was known stays.
    pub(crate) fn freeze(&self) {
        for role in Role::ALL {
            self.of(role)
                .send_if_modified(|known| std::mem::take(&mut known.is_current));
        }
    }

    fn of(&self, role: Role) -> &watch::Sender<Directory> {
        &self.0[role as usize]
    }
}

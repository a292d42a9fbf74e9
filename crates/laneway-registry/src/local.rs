//! The backend in one process.

use std::collections::{BTreeMap, HashMap};

use crate::keeper::{Announced, Backend, News, Session};
use crate::{Error, Instance, InstanceId, Role};

/// A registry that is nowhere but here.
#[derive(Debug, Default)]
pub(crate) struct Local {
    instances: BTreeMap<(Role, InstanceId), Instance>,
    locks: HashMap<String, InstanceId>,
}

impl Backend for Local {
    type Session = Self;

    async fn connect(&mut self) -> Result<Self, Error> {
        Ok(std::mem::take(self))
    }
}

impl Session for Local {
    async fn announce(&mut self, instance: &Instance) -> Result<Announced, Error> {
        let entry = (instance.role, instance.id);
        self.instances.insert(entry, instance.clone());
        Ok(Announced::Listed)
    }

    async fn withdraw(&mut self, role: Role, id: InstanceId) -> Result<(), Error> {
        self.instances.remove(&(role, id));
        self.locks.retain(|_, holder| *holder != id);
        Ok(())
    }

    async fn remove(&mut self, role: Role, id: InstanceId) -> Result<bool, Error> {
        let is_there = self.instances.contains_key(&(role, id));
        if is_there {
            self.withdraw(role, id).await?;
        }
        Ok(is_there)
    }

    async fn lock(&mut self, name: &str, holder: InstanceId) -> Result<bool, Error> {
        let holds = *self.locks.entry(name.to_owned()).or_insert(holder);
        Ok(holds == holder)
    }

    async fn unlock(&mut self, name: &str, holder: InstanceId) -> Result<(), Error> {
        if self.locks.get(name) == Some(&holder) {
            self.locks.remove(name);
        }
        Ok(())
    }

    fn instances(&self, role: Role) -> Vec<Instance> {
        let of_role = self.instances.values().filter(|it| it.role == role);
        of_role.cloned().collect()
    }

    async fn next(&mut self) -> News {
        std::future::pending().await
    }
}

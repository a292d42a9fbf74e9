//! The role admin: drains and removes instances.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use laneway_cluster::catalog::Catalog;
use laneway_registry::{Directory, Instance, InstanceId, Registry, Role};
use serde::Serialize;
use tokio::sync::watch;
use tracing::warn;

use super::catalog::{NotSet, SharedCatalog};

/// How long the registry may take.
const WITHIN: Duration = Duration::from_secs(3);

/// The instances of the cluster, for operators.
#[derive(Debug)]
pub(crate) struct Instances {
    pub(super) catalog: Arc<SharedCatalog>,
    pub(super) registry: Registry,
    pub(super) directories: Vec<watch::Receiver<Directory>>,
}

/// An instance that was told something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ToldView {
    id: InstanceId,
    /// Nothing if the registry does not list it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    roles: Vec<Role>,
}

/// Which instance is meant cannot be said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclear {
    #[error(
        "no instance with the name or id {0:?} is listed: `laneway cluster status` lists those that are; one that is silent \
         can be removed by its id"
    )]
    Unknown(String),
    #[error(
        "{name:?} is the name of more than one instance: use one of the ids {}",
        listed(ids)
    )]
    Ambiguous { name: String, ids: Vec<InstanceId> },
}

fn listed(ids: &[InstanceId]) -> String {
    let ids: Vec<String> = ids.iter().map(InstanceId::to_string).collect();
    ids.join(", ")
}

impl Instances {
    /// Lets an instance finish what it has, and take nothing new.
    pub(crate) async fn drain(&self, which: &str) -> Result<ToldView, NotSet<Unclear>> {
        let told = self.find(which).map_err(NotSet::Refused)?;
        if told.roles.is_empty() {
            return Err(NotSet::Refused(Unclear::Unknown(which.to_owned())));
        }
        let id = told.id.to_string();
        let set = |catalog: &mut Catalog| {
            catalog.drain(id.clone());
            Ok(())
        };
        self.catalog.change(set).await?;
        Ok(told)
    }

    /// Ends the membership of an instance, whether it lives or not.
    pub(crate) async fn remove(&self, which: &str) -> Result<ToldView, NotSet<Unclear>> {
        let told = self.find(which).map_err(NotSet::Refused)?;
        let id = told.id.to_string();
        let set = |catalog: &mut Catalog| {
            catalog.remove(id.clone());
            Ok(())
        };
        // First of all: this is what counts. The entry of the registry would come back with a session that is renewed.
        self.catalog.change(set).await?;
        for role in &told.roles {
            if let Err(error) = self.registry.remove(*role, told.id, WITHIN).await {
                warn!(%role, id = %told.id, %error, "the entry of a removed instance could not be taken off the registry");
            }
        }
        Ok(told)
    }

    /// The instance with this id, or the one with this name.
    fn find(&self, which: &str) -> Result<ToldView, Unclear> {
        let directories: Vec<Directory> = self
            .directories
            .iter()
            .map(|directory| directory.borrow().clone())
            .collect();
        let all = directories.iter().flat_map(Directory::instances);
        resolve(which, all)
    }
}

fn resolve<'a>(which: &str, all: impl Iterator<Item = &'a Instance>) -> Result<ToldView, Unclear> {
    let id: Option<InstanceId> = which.parse().ok();
    let is_meant = |it: &&Instance| Some(it.id) == id || it.name == which;
    let mut found: BTreeMap<InstanceId, ToldView> = BTreeMap::new();
    for instance in all.filter(is_meant) {
        let told = found.entry(instance.id).or_insert_with(|| ToldView {
            id: instance.id,
            name: Some(instance.name.clone()),
            roles: Vec::new(),
        });
        told.roles.push(instance.role);
    }
    // An id is an id, also if a process was given it as its name.
    if let Some(id) = id {
        let unlisted = ToldView {
            id,
            name: None,
            roles: Vec::new(),
        };
        return Ok(found.remove(&id).unwrap_or(unlisted));
    }
    if found.len() > 1 {
        return Err(Unclear::Ambiguous {
            name: which.to_owned(),
            ids: found.into_keys().collect(),
        });
    }
    let only = found.into_values().next();
    only.ok_or_else(|| Unclear::Unknown(which.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_two_is_refused_with_their_ids_and_an_id_is_always_clear() {
        let one = Instance::new(Role::Worker, "w", "127.0.0.1:1");
        let mut also = Instance::new(Role::Center, "w", "127.0.0.1:1");
        also.id = one.id;
        let other = Instance::new(Role::Worker, "w", "127.0.0.1:2");
        let both = [one.clone(), also];
        let told = resolve("w", both.iter()).expect("one process");
        assert_eq!(told.id, one.id);
        assert_eq!(told.roles, [Role::Worker, Role::Center]);
        let all = [&both[0], &both[1], &other];
        let error = resolve("w", all.into_iter()).expect_err("two processes");
        let error = error.to_string();
        assert!(error.contains(&one.id.to_string()) && error.contains(&other.id.to_string()));
        let told = resolve(&other.id.to_string(), all.into_iter()).expect("an id");
        assert_eq!((told.id, told.roles), (other.id, vec![Role::Worker]));
        let gone = InstanceId::draw();
        let told = resolve(&gone.to_string(), all.into_iter()).expect("an id");
        assert_eq!((told.id, told.roles, told.name), (gone, vec![], None));
        assert!(resolve("v", all.into_iter()).is_err());
    }
}

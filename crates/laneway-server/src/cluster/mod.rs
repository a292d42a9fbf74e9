//! The delay service on many machines: which roles this process has, and how they find each other.
//!
//! | file | what it is |
//! |---|---|
//! | `member` | starts the roles of this process, and stops them |
//! | `common` | what they share, and how each of them is made |
//! | `topics` | the intake and the log |
//! | `registry` | where the processes of a cluster find each other |
//! | `connect` | streams to workers, and calls to centers, here and elsewhere |
//! | `backup` | the copies of owned shards in Redis |
//! | `owners` | finds the owner of a shard, and asks it |
//! | `receive` | the role receive: [`Messages`](crate::messages::Messages) of a cluster |
//! | `catalog` | what operators have set, followed and changed |
//! | `obey` | what operators have set for this very process |
//! | `halted` | a center on which a shard can go no further gives up |
//! | `overview` | the role admin: instances, shards and clocks |
//! | `placements` | the role admin: which workers topics have |
//! | `instances` | the role admin: drains and removes instances |
//! | `metrics` | what the roles count |

mod backup;
mod catalog;
mod common;
mod connect;
mod halted;
mod instances;
mod member;
mod metrics;
mod obey;
mod overview;
mod owners;
mod placements;
mod receive;
mod registry;
mod topics;

pub(crate) use catalog::NotSet;
pub(crate) use instances::Unclear;
pub(crate) use member::{Admin, Member};
pub(crate) use owners::NoOwner;
pub(crate) use placements::{PlacementChange, Unfit};
pub(crate) use receive::id_of_key;
pub(crate) use topics::open as open_topics;

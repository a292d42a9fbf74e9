//! Topics: what a topic is called, what it is declared to be, and how a declaration meets what the
//! broker already has.
//!
//! A topic is declared once, explicitly or by its first use, and keeps that declaration. Declaring it
//! differently later is an error that says both sides; [`reconcile`] decides.
//!
//! ```
//! use laneway::topic::{Growth, Decision, Strategy, Topic, reconcile};
//!
//! let orders = Topic::domain("shop.orders").partitions(32).build()?;
//! let decision = reconcile(&orders, None, Strategy::CreateOnly, Growth::Refused)?;
//! assert_eq!(decision, Decision::Create);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `declaration`, `presets` | what a topic is declared to be, and starting points for that |
//! | `name` | what a topic may be called |
//! | `partitions` | how many it has, and which one a key belongs to |
//! | `retention` | how long it keeps its messages |
//! | `reconcile` | what to do when a declaration meets the topic that the broker has |
//! | `config` | a declaration in configuration files and in the stores of brokers |
//! | `error` | why a name or a declaration is refused |

mod config;
mod declaration;
mod error;
mod name;
mod partitions;
mod presets;
mod reconcile;
mod retention;

#[cfg(feature = "nats")]
pub(crate) use self::config::read_stored;
pub use declaration::{Compression, Kind, Storage, Topic, TopicBuilder};
pub use error::Error;
pub use name::{Reserved, TopicName};
pub use partitions::{Partitions, partition_of};
pub use reconcile::{Decision, Difference, Growth, ReconcileError, Strategy, reconcile};
pub use retention::Retention;

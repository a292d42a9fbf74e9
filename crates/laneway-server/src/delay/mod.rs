//! The delay service of this server: what delivers, and what is counted.
//!
//! | file | what it is |
//! |---|---|
//! | `service` | starts the bus, the callback client and the engine; stops them |
//! | `callbacks` | messages that go to a URL |
//! | `publish` | messages that go to a topic of the bus |
//! | `figures` | what is counted |

mod callbacks;
mod figures;
mod publish;
mod service;

pub(crate) use figures::Figures;
pub(crate) use service::Service;

//! How the roles of the delay service talk to each other: gRPC between processes, channels within one.
//!
//! A center opens one stream to each worker, on which frames go both ways ([`connection`]); receives and admins call centers
//! ([`CenterCalls`]). Both look the same within one process and between two. One listener of a process serves both.
//!
//! ```
//! use std::time::Duration;
//! use laneway_rpc::proto::{Hello, Ping, ToWorker, to_worker::Frame};
//! use laneway_rpc::{Services, Settings, connect_worker, serve};
//! use tokio::net::TcpListener;
//! use tokio::sync::mpsc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hello = |name: &str, instance: u8| Hello {
//!     cluster: "orders".into(),
//!     instance: vec![instance; 16].into(),
//!     name: name.into(),
//!     version: "0.1.0".into(),
//! };
//!
//! // A worker listens.
//! let (accepted, mut connections) = mpsc::channel(16);
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let services = Services { workers: Some(accepted), center: None };
//! let server = serve(listener, &Settings::new(hello("worker-1", 1)), services)?;
//!
//! // A center connects.
//! let address = server.address().to_string();
//! let center = connect_worker(&address, &Settings::new(hello("center-1", 2))).await?;
//! assert_eq!(center.peer.name, "worker-1");
//!
//! let mut worker = connections.recv().await.expect("the center has connected");
//! let ping = Frame::Ping(Ping { number: 1 });
//! center.sender.send(ToWorker { frame: Some(ping.clone()) }).await?;
//! assert_eq!(worker.receiver.recv().await.and_then(|frame| frame.frame), Some(ping));
//! server.close(Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What this is not
//!
//! It decides nothing, and repeats nothing by itself: a stream that broke is opened again by the center, a call that failed is
//! repeated by its caller, if [`CallError::is_retryable`].
//!
//! # What is noticed when
//!
//! | what | when |
//! |---|---|
//! | the other process is killed | at once |
//! | it is frozen, or the network swallows everything | 3 s: HTTP/2 pings of both sides, also while nothing is sent |
//! | nothing listens there | at once, or 500 ms |
//! | a connection without a `hello` | closed after 2 s |
//! | it reads slowly | `sender.send` waits; neither side keeps more than [`Settings::frames`] frames, and what HTTP/2 lets it send ahead |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`proto`] | what goes over the wire, generated of `proto/laneway.proto` |
//! | [`convert`] | between what goes over the wire and the types of `laneway_delay` and `laneway_cluster`, checked |
//! | [`connection`] | the two ends of a stream between a center and a worker |
//! | `calls` | [`CenterCalls`]: what a center is asked |
//! | `client` | [`connect_worker`], and [`CenterClient`] |
//! | `error` | what went wrong with a connection |
//! | `handshake` | the hellos, checked |
//! | `server` | [`serve`]: one listener for both services |
//! | `settings` | [`Settings`]: who the process is, sizes and deadlines |
//! | `stream` | frames between a gRPC stream and channels |
//! | `tls` | [`Tls`]: certificates of both sides |

#![forbid(unsafe_code)]

mod calls;
mod client;
pub mod connection;
pub mod convert;
mod error;
mod handshake;
mod server;
mod settings;
mod stream;
mod tls;

pub use calls::{CallError, CenterCalls};
pub use client::{CenterClient, connect_worker};
pub use error::Error;
pub use server::{Server, Services, serve};
pub use settings::Settings;
pub use tls::Tls;

pub mod proto {
    //! What `proto/laneway.proto` says.
    #![expect(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the comments are in the file it is made of"
    )]

    tonic::include_proto!("laneway.v1");
}

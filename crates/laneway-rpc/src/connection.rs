//! The two ends of a stream between a center and a worker.
//!
//! ```
//! use laneway_rpc::connection::pair;
//! use laneway_rpc::proto::{Ping, ToWorker, to_worker::Frame};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let (center, mut worker) = pair(16);
//! let ping = Frame::Ping(Ping { number: 1 });
//! center.sender.send(ToWorker { frame: Some(ping.clone()) }).await.expect("the worker is there");
//! assert_eq!(worker.receiver.recv().await.and_then(|frame| frame.frame), Some(ping));
//! # }
//! ```

use tokio::sync::mpsc;

use crate::proto::{Hello, ToCenter, ToWorker};

/// One end of a stream: frames go out by `sender`, and come in by `receiver`, in order. When the other end is gone, or the
/// connection is, `sender` is closed and `receiver` ends. An end is given up by dropping both; what was sent before is on its way.
///
/// The hellos have been exchanged and checked before there is a `Connection`, and are no frames of it.
#[derive(Debug)]
pub struct Connection<Out, In> {
    /// What the other end said about itself.
    pub peer: Hello,
    /// Takes frames; full while the other end is slow.
    pub sender: mpsc::Sender<Out>,
    /// Yields frames.
    pub receiver: mpsc::Receiver<In>,
}

/// The end that a center has.
pub type WorkerConnection = Connection<ToWorker, ToCenter>;

/// The end that a worker has.
pub type CenterConnection = Connection<ToCenter, ToWorker>;

/// Two ends within one process, with room for `frames` on the way in each direction. The ends say nothing about themselves.
///
/// # Panics
/// With room for none.
#[must_use]
pub fn pair(frames: usize) -> (WorkerConnection, CenterConnection) {
    pair_of(frames, Hello::default(), Hello::default())
}

/// The same for a center and a worker that said this about themselves.
///
/// # Panics
/// With room for none.
#[must_use]
pub fn pair_of(
    frames: usize,
    center: Hello,
    worker: Hello,
) -> (WorkerConnection, CenterConnection) {
    let (to_worker, from_center) = mpsc::channel(frames);
    let (to_center, from_worker) = mpsc::channel(frames);
    let of_center = Connection {
        peer: worker,
        sender: to_worker,
        receiver: from_worker,
    };
    let of_worker = Connection {
        peer: center,
        sender: to_center,
        receiver: from_center,
    };
    (of_center, of_worker)
}

//! Frames between a gRPC stream and channels.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::Streaming;

/// How long frames are still taken from the other end when this one has given up the stream: it has to notice that.
const LINGER: Duration = Duration::from_secs(5);

/// Frames on their way out: a first one, then those of a channel. When it is stopped, the channel is closed, and the stream
/// ends behind what is in it.
pub(crate) struct Outgoing<T> {
    first: Option<T>,
    frames: mpsc::Receiver<T>,
    stop: Option<WatchStream<bool>>,
}

/// Stops the way out, also by being dropped.
pub(crate) type Stop = watch::Sender<bool>;

/// A way out with room for `frames`, and what stops it.
pub(crate) fn outgoing<T>(first: T, frames: usize) -> (mpsc::Sender<T>, Outgoing<T>, Stop) {
    let (sender, frames) = mpsc::channel(frames.max(1));
    let (stop, stopped) = watch::channel(false);
    let outgoing = Outgoing {
        first: Some(first),
        frames,
        stop: Some(WatchStream::from_changes(stopped)),
    };
    (sender, outgoing, stop)
}

impl<T: Unpin> Outgoing<T> {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Some(stop) = &mut self.stop
            && Pin::new(stop).poll_next(cx).is_ready()
        {
            self.stop = None;
            self.frames.close();
        }
        self.frames.poll_recv(cx)
    }
}

impl<T: Unpin> Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_frame(cx)
    }
}

/// The same for responses of a server.
pub(crate) struct Responses<T>(pub(crate) Outgoing<T>);

impl<T: Unpin> Stream for Responses<T> {
    type Item = Result<T, tonic::Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_frame(cx).map(|frame| frame.map(Ok))
    }
}

/// Moves frames from the other end into a channel, which holds them back while it is full. When the stream ends, however, the
/// channel ends, and the way out is stopped. When the reader of the channel is gone, frames are read and dropped for a while, so
/// that what is on its way out is not torn away.
pub(crate) async fn incoming<T>(mut from: Streaming<T>, into: mpsc::Sender<T>, stop: Stop) {
    loop {
        let frame = tokio::select! {
            frame = from.message() => frame,
            () = into.closed() => break,
        };
        match frame {
            Ok(Some(frame)) => {
                if into.send(frame).await.is_err() {
                    break;
                }
            }
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "stream broke");
                return;
            }
        }
    }
    let rest = async { while let Ok(Some(_)) = from.message().await {} };
    let _ = tokio::time::timeout(LINGER, rest).await;
    drop(stop);
}

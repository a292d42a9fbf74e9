//! Work that is finished also when its caller has given up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that goes on by itself if it is dropped between its first poll and its end.
///
/// A publish whose caller gives up may already be on its way to the disk. [`Finish`] goes on with it
/// on a task, which tells the readers when it gets there, or the record would lie unread until the next one comes.
pub(crate) struct Finish<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: bool,
}

impl<T: Send + 'static> Finish<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
            begun: false,
        }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let result = work.as_mut().poll(cx);
        if result.is_ready() {
            self.work = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if self.begun
            && let Some(work) = self.work.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    fn work() -> (oneshot::Sender<()>, oneshot::Receiver<()>, Finish<()>) {
        let (go, gone) = oneshot::channel();
        let (done, finished) = oneshot::channel();
        let finish = Finish::new(async move {
            gone.await.ok();
            done.send(()).ok();
        });
        (go, finished, finish)
    }

    #[tokio::test]
    async fn what_was_begun_is_finished() {
        let (go, finished, mut work) = work();
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        go.send(()).expect("it goes on");
        finished.await.expect("and comes to its end");
    }

    #[tokio::test]
    async fn what_was_never_begun_is_not() {
        let (go, finished, work) = work();
        drop(work);
        assert!(go.send(()).is_err());
        assert!(finished.await.is_err());
    }
}

//! How a task that could go on lets others run.

/// Lets other tasks run before this one goes on.
///
/// `tokio::task::yield_now` would put the task on a list that only its own thread reads, and the next
/// task on that thread may block it. A task that wakes itself goes to the end of the thread's queue,
/// from which other threads steal.
pub async fn yield_to_others() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

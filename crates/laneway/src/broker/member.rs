//! A member of a group whose life is a task of its own.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::subscriptions::SubscriptionGuard;
use super::{Assignment, BoxFuture, BrokerError, Member};

/// Where the task sends assignments, and the errors that keep it from getting some.
pub(super) type Assignments = mpsc::UnboundedSender<Assigned>;
type Assigned = Result<Arc<dyn Assignment>, BrokerError>;

/// The member that the bus has.
pub(crate) struct GroupMember {
    assignments: mpsc::UnboundedReceiver<Assigned>,
    leave: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    /// Free as soon as this is dropped: the task may take a moment to end, and a caller that gives up
    /// subscribing may subscribe again at once.
    _guard: SubscriptionGuard,
}

impl GroupMember {
    /// Begins a life, which ends some time after it is told to.
    pub(super) fn begin<L>(
        assignments: mpsc::UnboundedReceiver<Assigned>,
        guard: SubscriptionGuard,
        live: impl FnOnce(oneshot::Receiver<()>) -> L,
    ) -> Self
    where
        L: Future<Output = ()> + Send + 'static,
    {
        let (leave, left) = oneshot::channel();
        Self {
            assignments,
            leave: Some(leave),
            task: tokio::spawn(live(left)),
            _guard: guard,
        }
    }
}

impl Member for GroupMember {
    fn next(&mut self) -> BoxFuture<'_, Assigned> {
        Box::pin(async {
            match self.assignments.recv().await {
                Some(assignment) => assignment,
                // It ends before it is told to only if it panics, or by another bug.
                None => Err(BrokerError::Broken("its task is gone".to_owned())),
            }
        })
    }

    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(leave) = self.leave.take() {
                let _ = leave.send(());
            }
            let _ = (&mut self.task).await;
        })
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.task.abort();
    }
}

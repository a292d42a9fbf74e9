//! A member of a group whose life is a task of its own.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{BoxFuture, BrokerError, Claim, Member};

/// Where the task says which partitions are ours, and what keeps it from getting some.
pub(super) type Claims = mpsc::UnboundedSender<Claimed>;
type Claimed = Result<Arc<dyn Claim>, BrokerError>;

/// The member that the bus has.
pub(super) struct GroupMember {
    claims: mpsc::UnboundedReceiver<Claimed>,
    leave: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl GroupMember {
    /// Begins a life, which ends some time after it is told to.
    pub(super) fn begin<L>(
        claims: mpsc::UnboundedReceiver<Claimed>,
        live: impl FnOnce(oneshot::Receiver<()>) -> L,
    ) -> Self
    where
        L: Future<Output = ()> + Send + 'static,
    {
        let (leave, left) = oneshot::channel();
        Self {
            claims,
            leave: Some(leave),
            task: tokio::spawn(live(left)),
        }
    }
}

impl Member for GroupMember {
    fn next(&mut self) -> BoxFuture<'_, Claimed> {
        Box::pin(async {
            match self.claims.recv().await {
                Some(claim) => claim,
                // The task has ended: there will be no more.
                None => std::future::pending().await,
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

//! What a log has of its bus: the broker, the deadline of calls, and whether it is open.

use std::future::Future;
use std::sync::Arc;

use super::Bus;
use super::error::Error;
use super::shared::Shared;
use crate::broker::Broker;
use crate::topic::Strategy;

#[derive(Clone)]
pub(crate) struct LogAccess(Arc<Shared>);

impl Bus {
    pub(crate) fn log_access(&self) -> LogAccess {
        LogAccess(self.shared.clone())
    }
}

impl LogAccess {
    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.0.broker
    }

    pub(crate) fn strategy(&self) -> Strategy {
        self.0.strategy
    }

    /// An error if the bus has let its broker go.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        self.0.check_publishing()
    }

    /// Asks the broker, with the deadline of the bus.
    pub(crate) async fn ask<T, E: Into<Error>>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.0.call_timeout.with(doing, call).await
    }
}

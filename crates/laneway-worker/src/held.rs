//! The store of the engine: attempts that were given to this worker. Nothing is submitted to it and nothing is changed in it;
//! the ledger decides what waits.

use std::sync::Arc;
use std::time::Duration;

use laneway_delay::store::{
    Change, Claim, Draft, DueIndex, DueKey, Outcome, Scheduled, Settlement, Store,
};
use laneway_delay::{
    Accepted, BoxFuture, Counts, Error, Message, MessageId, Page, Query, Timestamp,
};
use laneway_rpc::proto::Ending;

use crate::ledger::handed_back;
use crate::shared::Shared;

/// See the [module](self).
pub(crate) struct Held(pub(crate) Arc<Shared>);

impl Store for Held {
    fn attach(&self, due_index: Arc<dyn DueIndex>) {
        let _ = self.0.due_index.set(due_index);
    }

    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>> {
        let refused = drafts.iter().map(|_| Err(unsupported())).collect();
        Box::pin(std::future::ready(refused))
    }

    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>> {
        let refused = changes.iter().map(|_| Err(unsupported())).collect();
        Box::pin(std::future::ready(refused))
    }

    fn claim(
        &self,
        waiting: Vec<Scheduled>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>> {
        let counter = self.0.counter();
        let claims = self.0.ledger().claim(&waiting, now, counter);
        Box::pin(std::future::ready(Ok(claims)))
    }

    /// Sinks tell the ledger how attempts ended. What is left for this are those whose sink panicked.
    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        for settlement in settlements {
            let ending = match settlement.outcome {
                Outcome::Delivered => laneway_cluster::owner::Outcome::Delivered.into(),
                Outcome::Failed(undelivered, _) => Ending::from(&undelivered),
                Outcome::Released => handed_back(Duration::ZERO),
                Outcome::Unknown(reason) => {
                    Ending::from(&laneway_delay::Undelivered::unknown(reason))
                }
            };
            self.0.end(settlement.claim.due_key.serial, ending);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Scheduled>, Error>> {
        let found = self.0.ledger().scan(from, until, limit);
        Box::pin(std::future::ready(Ok(found)))
    }

    fn floor(&self) -> DueKey {
        self.0.ledger().floor()
    }

    fn get<'a>(&'a self, _: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn list<'a>(&'a self, _: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(std::future::ready(Err(unsupported())))
    }

    fn counts(&self) -> Counts {
        Counts::new()
    }

    fn forget(&self, _: Timestamp, _: Timestamp) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn unsupported() -> Error {
    Error::Failed("a worker is given attempts, and keeps no messages".to_owned())
}

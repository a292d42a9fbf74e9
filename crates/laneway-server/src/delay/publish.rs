//! Messages that go to a topic of the bus.

use laneway::BusSink;
use laneway_delay::{BoxFuture, Firing, Publish, Undelivered};

use super::Figures;

/// Publishes what is due as any other event, and counts it.
pub(super) struct OnBus {
    pub(super) sink: BusSink,
    pub(super) figures: Figures,
}

impl Publish for OnBus {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        for firing in &batch {
            self.figures.started(firing);
        }
        Box::pin(async move {
            let results = Publish::publish(&self.sink, batch).await;
            for result in &results {
                self.figures.published(result);
            }
            results
        })
    }
}

//! Counts what any sink does.

use std::time::{Instant, SystemTime};

use laneway_delay::{
    BoxFuture, Callback, Deliver, Error, Firing, Publish, Submission, Timestamp, Undelivered,
};

use super::Metrics;

/// A sink whose attempts are counted. It changes nothing else.
pub(super) struct Metered<S> {
    sink: S,
    metrics: Metrics,
}

impl<S> Metered<S> {
    pub(super) fn new(sink: S, metrics: &Metrics) -> Self {
        Self {
            sink,
            metrics: metrics.clone(),
        }
    }
}

impl<S: Deliver> Deliver for Metered<S> {
    fn check(&self, callback: &mut Callback) -> Result<(), Error> {
        self.sink.check(callback)
    }

    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            let (began, started) = (Timestamp::from(SystemTime::now()), Instant::now());
            let result = self.sink.deliver(firing.clone()).await;
            self.metrics
                .called(&firing, began, started.elapsed(), &result);
            result
        })
    }
}

impl<S: Publish> Publish for Metered<S> {
    fn objection(&self, submission: &Submission) -> Option<String> {
        self.sink.objection(submission)
    }

    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(async move {
            let began = Timestamp::from(SystemTime::now());
            let results = self.sink.publish(batch.clone()).await;
            for (firing, result) in batch.iter().zip(&results) {
                self.metrics.published(firing, began, result);
            }
            results
        })
    }
}

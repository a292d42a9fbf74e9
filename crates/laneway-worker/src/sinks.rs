//! Sinks around the sinks of the worker: they ask the fence before anything is sent, and tell the ledger how it ended.

use std::sync::Arc;
use std::time::Duration;

use laneway_delay::{
    BoxFuture, Callback, Deliver, Error, Failure, Firing, Publish, Sinks, Submission, Undelivered,
};
use laneway_rpc::proto::Ending;

use crate::ledger::handed_back;
use crate::shared::Shared;

/// For how long an event is handed back that the bus certainly has not taken, if the bus does not say.
const BUS_WAIT: Duration = Duration::from_secs(1);

struct Callbacks {
    shared: Arc<Shared>,
    sink: Arc<dyn Deliver>,
}

struct Bus {
    shared: Arc<Shared>,
    sink: Arc<dyn Publish>,
}

/// The sinks of a worker, behind its fence.
pub(crate) fn fenced(shared: &Arc<Shared>) -> Sinks {
    let sinks = shared.options.sinks.clone();
    let (with_callbacks, with_bus) = (shared.clone(), shared.clone());
    Sinks {
        callbacks: sinks.callbacks.map(|sink| {
            let shared = with_callbacks;
            Arc::new(Callbacks { shared, sink }) as Arc<dyn Deliver>
        }),
        bus: sinks.bus.map(|sink| {
            let shared = with_bus;
            Arc::new(Bus { shared, sink }) as Arc<dyn Publish>
        }),
    }
}

/// The number of the attempt in the ledger: it claims with its number as the version.
fn serial(firing: &Firing) -> u64 {
    firing.message.record.version().as_u64()
}

impl Deliver for Callbacks {
    fn check(&self, callback: &mut Callback) -> Result<(), Error> {
        self.sink.check(callback)
    }

    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            let serial = serial(&firing);
            if !self.shared.begin(serial) {
                // The engine looks once more, and finds it gone.
                let gone = Failure::Postponed(Duration::ZERO);
                return Err(Undelivered::new(gone, "it must not be started any more"));
            }
            let result = self.sink.deliver(firing).await;
            if let Err(undelivered) = &result
                && let Failure::Unavailable(wait) = undelivered.failure
            {
                self.shared.rest(serial, wait);
            }
            self.shared.end(serial, Ending::from(&result));
            result
        })
    }
}

impl Publish for Bus {
    fn objection(&self, submission: &Submission) -> Option<String> {
        self.sink.objection(submission)
    }

    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(async move {
            let may_start: Vec<(u64, bool)> = batch
                .iter()
                .map(|firing| (serial(firing), self.shared.begin(serial(firing))))
                .collect();
            let mut may = may_start.iter().map(|(_, may)| *may);
            let started: Vec<Firing> = batch
                .into_iter()
                .filter(|_| may.next().unwrap_or(false))
                .collect();
            let results = if started.is_empty() {
                Vec::new()
            } else {
                self.sink.publish(started).await
            };
            let mut results = results.into_iter();
            let answer = |(serial, may): (u64, bool)| {
                if !may {
                    // It is done with here: it holds up those behind it no more than one that was published.
                    return Ok(());
                }
                let no_answer = || Err(Undelivered::unknown("the bus gave no answer"));
                let result = results.next().unwrap_or_else(no_answer);
                self.shared.end(serial, ending(&result));
                result
            };
            may_start.into_iter().map(answer).collect()
        })
    }
}

/// Of all failures of the bus only permanent and unknown ones are attempts: nothing was published by the others.
fn ending(result: &Result<(), Undelivered>) -> Ending {
    match result {
        Err(undelivered) => match undelivered.failure {
            Failure::Retry => handed_back(BUS_WAIT),
            Failure::RetryAfter(wait) => handed_back(wait),
            _ => Ending::from(undelivered),
        },
        Ok(()) => Ending::from(result),
    }
}

//! Plain messages on the lanes: settled before they are handled, never again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tracing::Instrument;

use super::delivery::Delivery;
use super::domain::{Stats, deadline_of};
use super::event::{Context, Message};
use super::handler::MessageHandler;
use super::warnings::Warnings;
use crate::lanes::{Disposition, Failure, Handler, Jobs, Outcome};
use crate::topic::TopicName;
use crate::trace;

pub(super) struct Plain<H> {
    pub(super) topic: TopicName,
    pub(super) handler: H,
    pub(super) stats: Arc<Stats>,
    pub(super) warnings: Warnings,
}

impl<H: MessageHandler> Handler<Delivery> for Plain<H> {
    async fn handle(&self, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        let delivery = jobs.first();
        if let Some(reason) = delivery.record.unreadable() {
            return Err(Failure::fatal(reason));
        }
        let trace = trace::TraceParent::from_headers(&delivery.record.headers)
            .ok()
            .flatten();
        let message = Message {
            context: Context {
                topic: self.topic.clone(),
                partition: delivery.partition.number,
                offset: delivery.offset,
                epoch: delivery.partition.epoch,
                attempt: jobs.attempt(),
                deadline: deadline_of(jobs, Instant::now()),
                trace,
                record: delivery.record.clone(),
            },
        };
        let span = tracing::debug_span!("handle", topic = %self.topic, offset = delivery.offset);
        let handling = self.handler.handle(message).instrument(span);
        trace::within(trace, handling).await
    }

    async fn exhausted(
        &self,
        delivery: &Delivery,
        failure: &Failure,
        _attempts: u32,
    ) -> Result<Disposition, Failure> {
        if let Some(unsaid) = self.warnings.turn() {
            tracing::warn!(
                topic = %self.topic, offset = delivery.offset, reason = %failure, unsaid,
                "a plain message failed; it does not come again"
            );
        }
        Ok(Disposition::Dropped)
    }

    fn finished(&self, delivery: Delivery, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                self.stats.handled.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Exhausted(_) => {
                self.stats.failed.fetch_add(1, Ordering::Relaxed);
            }
            // Abandoned: the report of the close counts it.
            _ => {}
        }
        delivery.partition.finished();
    }
}

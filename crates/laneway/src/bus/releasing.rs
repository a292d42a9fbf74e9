//! Releasing a key: its parked events are handled, in the lane of the key.
//!
//! A release is one attempt of the lanes and many of handlers. Each event is handled as the owner of the partition that
//! it came from, which need not be the one of the request: where the topic has grown, a key is parked in two.
//!
//! A letter is settled when its event is handled. Between the two the attempt can fail, or be over its time limit; the
//! next attempt finds the letter again. [`ParkedKeys`](super::dead_letters::parked_keys::ParkedKeys) knows that its event
//! was handled, so that it is settled and not handled a second time by the same owner.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use super::dead_letters::release_request;
use super::dead_letters::topic::Letter;
use super::delivery::Delivery;
use super::domain::{Domain, deadline_of, envelope_of, ours_no_more, trace_of};
use super::event::{Context, Event};
use super::handler::Events;
use super::partition_state::PartitionState;
use crate::lanes::{Admission, Failure, Job, Jobs};

impl<H: Events> Domain<H> {
    /// Handles the parked events of a key, oldest first. Called in the lane of the key, so nothing
    /// else of it runs meanwhile.
    pub(super) async fn release(
        &self,
        request: &Delivery,
        jobs: Jobs<'_, Delivery>,
    ) -> Result<(), Failure> {
        let key = request.key().unwrap_or_default();
        // Those of other partitions are with their owners.
        let partitions = self.parked_keys.partitions(key);
        if partitions.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let bus = self.bus()?;
        let parked = bus.parked(self.topic.name());
        let owned = |letter: &Letter| {
            let is_it = |held: &&Arc<PartitionState>| u64::from(held.number) == letter.origin.0;
            partitions.iter().find(is_it)
        };
        let of_key = |letter: &Letter| {
            let is_of_group = *letter.group == *self.group;
            is_of_group && letter.key.as_deref() == Some(key) && owned(letter).is_some()
        };
        let at_once = bus.limits.released;
        // One more than is handled now, to see whether that is all.
        let letters = parked.list(at_once + 1, of_key).await?;
        for (done, letter) in letters.into_iter().enumerate() {
            let late = |limit: Duration| began.elapsed() > limit / 2;
            if done == at_once || done > 0 && jobs.time_limit().is_some_and(late) {
                return self.release_again(&bus, request).await;
            }
            let Some(partition) = owned(&letter) else {
                continue;
            };
            if !self.parked_keys.has_handled(key, &letter) {
                let handling = self.handle_parked(&letter, partition, jobs, began);
                match handling.await {
                    // It has its attempts for itself, like any other event.
                    Err(_) if done > 0 => {
                        self.stats.failed.fetch_add(1, Ordering::Relaxed);
                        return self.release_again(&bus, request).await;
                    }
                    result => result?,
                }
                // IMPORTANT: nothing is awaited between the handler and this, so that an attempt that ends here has
                // either not handled it or says so.
                self.parked_keys.handled(key, &letter);
            }
            parked.settle(&[letter.id]).await?;
        }
        self.parked_keys.released(key, &partitions);
        Ok(())
    }

    async fn release_again(&self, bus: &Shared, request: &Delivery) -> Result<(), Failure> {
        let again = release_request(&self.group, request.key().unwrap_or_default());
        let partition = request.partition.number;
        Ok(bus.append(&self.topic, partition, again).await?)
    }

    /// Handles a parked event as the owner of the partition that it came from.
    async fn handle_parked(
        &self,
        letter: &Letter,
        partition: &Arc<PartitionState>,
        jobs: Jobs<'_, Delivery>,
        began: Instant,
    ) -> Result<(), Failure> {
        // One attempt of the lanes is many of handlers here, and each asks for itself.
        wait_until_valid(partition).await?;
        let _running = partition.begin().ok_or_else(ours_no_more)?;
        let event = self.parked_event(letter, partition, jobs, began)?;
        let handled = partition.while_ours(self.call(vec![event], 0)).await;
        handled.unwrap_or_else(|| Err(ours_no_more()))
    }

    fn parked_event(
        &self,
        letter: &Letter,
        partition: &PartitionState,
        jobs: Jobs<'_, Delivery>,
        began: Instant,
    ) -> Result<Event, Failure> {
        if let Some(gone) = &letter.missing {
            return Err(Failure::fatal(format!("{gone}: drop letter {}", letter.id)));
        }
        let envelope = envelope_of(&letter.record)?;
        Ok(Event {
            envelope,
            context: Context {
                topic: self.topic.name().clone(),
                partition: partition.number,
                offset: letter.origin.1,
                epoch: partition.epoch,
                attempt: jobs.attempt(),
                deadline: deadline_of(jobs, began),
                trace: trace_of(&letter.record),
                record: Arc::new(letter.record.clone()),
            },
        })
    }
}

/// Waits until the lease of the partition is valid.
async fn wait_until_valid(partition: &PartitionState) -> Result<(), Failure> {
    loop {
        match partition.admission() {
            Admission::Now => return Ok(()),
            Admission::Later(wait) | Admission::Held { every: wait, .. } => {
                tokio::time::sleep(wait).await;
            }
            Admission::Never => return Err(ours_no_more()),
        }
    }
}

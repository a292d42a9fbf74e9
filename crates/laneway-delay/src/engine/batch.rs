//! One batch on its way: claim, deliver, settle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use foldhash::HashSet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Core;
use super::routes::Ended;
use crate::store::{Claim, Outcome, Route, Scheduled, Settlement, change};
use crate::{BoxFuture, Failure, Firing, Timestamp, Undelivered};

/// An attempt that takes longer than this waits for its receiver, and makes room for another one.
const SHORT: Duration = Duration::from_millis(100);

/// When a message is looked at again that cannot be read.
const UNREADABLE: Duration = Duration::from_secs(10);

/// How long a host rests when the store claims nothing: about as late is the first message when it does again.
const REFUSED: Duration = Duration::from_secs(1);

impl Core {
    /// Claims a batch. Those that turn out to be early (the clock went back) wait again.
    ///
    /// IMPORTANT: `claim` gives back to the horizon each message that is not due by the time it claims with. The
    /// others that `Store::claim` leaves out have been withdrawn, moved or claimed already: their entries are stale.
    async fn claim(&self, batch: Vec<Scheduled>) -> Result<Vec<Claim>, Vec<Scheduled>> {
        let now = self.clock.now();
        let (due, early): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|waiting| waiting.due_key.at <= now);
        if !early.is_empty() {
            self.scheduler.change(|scheduler| {
                for waiting in &early {
                    scheduler.horizon.admit(waiting);
                }
            });
        }
        match self.store.claim(due.clone(), now).await {
            Ok(claims) => Ok(claims),
            Err(error) => {
                if let Some(left_out) = self.told.refusals.take() {
                    tracing::error!(%error, left_out, "messages that are due cannot be claimed");
                }
                Err(due)
            }
        }
    }

    /// How every batch begins: with permits that it holds until its claims are settled. Nothing if the
    /// engine is closed.
    async fn acquire_permits(
        &self,
        pool: &Arc<Semaphore>,
        count: usize,
    ) -> Option<OwnedSemaphorePermit> {
        let needed = u32::try_from(count).unwrap_or(u32::MAX);
        let permits = pool.clone().acquire_many_owned(needed).await.ok()?;
        (!self.is_closed()).then_some(permits)
    }

    pub(super) async fn publish_batch(self: Arc<Self>, route: Route, batch: Vec<Scheduled>) {
        let count = batch.len();
        let Some(permits) = self.acquire_permits(&self.published, count).await else {
            return;
        };
        let claims = match self.claim(batch.clone()).await {
            Ok(claims) => claims,
            Err(due) => {
                self.bring_back(route, &due, &batch);
                return;
            }
        };
        let (settlements, waiting) = self.publish(claims).await;
        if waiting.is_empty() {
            // The next batch need not wait until this one is settled.
            self.scheduler.change(|scheduler| {
                scheduler.routes.went_well(route);
                scheduler.routes.went_quickly(route, self.clock.now());
                scheduler.routes.done(route, Ended::Batch(count));
            });
            self.settle(settlements).await;
            self.scheduler.finish(&batch);
        } else {
            self.settle(settlements).await;
            self.bring_back(route, &waiting, &batch);
        }
        drop(permits);
    }

    /// Some of a batch that was on its way to the bus wait again; the others are done with.
    fn bring_back(&self, route: Route, waiting: &[Scheduled], batch: &[Scheduled]) {
        let now = self.clock.now();
        let back: HashSet<_> = waiting.iter().map(|waiting| waiting.due_key).collect();
        self.scheduler.change(|scheduler| {
            scheduler.routes.put_back(waiting);
            scheduler.routes.set_back(route, now);
            scheduler.routes.done(route, Ended::Batch(batch.len()));
            for waiting in batch {
                scheduler.routes.give_back(waiting);
                if !back.contains(&waiting.due_key) {
                    scheduler.routes.finish(waiting.due_key);
                }
            }
        });
    }

    /// Publishes claims. Answers what became of them, and how those wait, in their order, that were not or
    /// perhaps not published.
    async fn publish(&self, claims: Vec<Claim>) -> (Vec<Settlement>, Vec<Scheduled>) {
        if claims.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let firings = claims.iter().map(Firing::from).collect();
        let results = self.ask_bus(firings).await;
        let now = self.clock.now();
        let (mut settlements, mut waiting) = (Vec::with_capacity(claims.len()), Vec::new());
        let mut results = results.into_iter();
        for claim in claims {
            let result = results
                .next()
                .unwrap_or_else(|| Err(Undelivered::unknown("the bus gave no answer")));
            let outcome = match result {
                Ok(()) => Outcome::Delivered,
                Err(undelivered) if undelivered.failure == Failure::Permanent => {
                    self.failed(&claim, undelivered, now)
                }
                Err(Undelivered {
                    failure, reason, ..
                }) => {
                    if waiting.is_empty() {
                        tracing::warn!(
                            id = claim.message.id.as_str(),
                            topic = claim.message.topic,
                            reason,
                            "publishing a delayed message failed, retrying"
                        );
                    }
                    let mut again = Scheduled::from(&claim);
                    let record = claim.message.record;
                    match record.doubt(record.version(), claim.due_key.at) {
                        Ok(doubted) if failure.is_unknown() => {
                            again.version = doubted.version();
                            waiting.push(again);
                            Outcome::Unknown(reason)
                        }
                        _ => {
                            waiting.push(again);
                            Outcome::Released
                        }
                    }
                }
            };
            settlements.push(Settlement {
                claim,
                now,
                outcome,
            });
        }
        (settlements, waiting)
    }

    /// A panic of the bus must not leave messages claimed.
    async fn ask_bus(&self, firings: Vec<Firing>) -> Vec<Result<(), Undelivered>> {
        let count = firings.len();
        let Some(bus) = self.sinks.bus.clone() else {
            return vec![Err(Undelivered::retry("there is no sink for the bus")); count];
        };
        let publishing = tokio::spawn(async move { bus.publish(firings).await });
        publishing.await.unwrap_or_else(|error| {
            let broke_off = format!("publishing broke off: {error}");
            vec![Err(Undelivered::unknown(broke_off)); count]
        })
    }

    /// Claims messages for hosts and starts an attempt for each.
    pub(super) async fn deliver_callbacks(self: Arc<Self>, batch: Vec<Scheduled>) {
        let Some(mut permits) = self.acquire_permits(&self.called, batch.len()).await else {
            return;
        };
        let claims = match self.claim(batch.clone()).await {
            Ok(claims) => claims,
            // One by one it would refuse them, too.
            Err(due) if self.store.health().is_err() => {
                self.wait_for_store(&due, &batch);
                return;
            }
            // One that cannot be read does not hold up the others.
            Err(due) => self.claim_each(due).await,
        };
        let mut claims = claims.into_iter().peekable();
        for waiting in batch {
            if let Some(claim) = claims.next_if(|claim| claim.due_key == waiting.due_key)
                && let Some(permit) = permits.split(1)
            {
                tokio::spawn(self.clone().attempt(waiting, claim, permit));
            } else {
                self.scheduler.change(|scheduler| {
                    scheduler.routes.done(waiting.route, Ended::Short);
                    scheduler.routes.finish(waiting.due_key);
                    scheduler.routes.give_back(&waiting);
                });
            }
        }
    }

    /// The store claims nothing now. Those that are due go back to the front of their queues, and their hosts rest for a
    /// moment; the others of the batch are stale.
    fn wait_for_store(&self, due: &[Scheduled], batch: &[Scheduled]) {
        let now = self.clock.now();
        let back: HashSet<_> = due.iter().map(|waiting| waiting.due_key).collect();
        let hosts: HashSet<_> = due.iter().map(|waiting| waiting.route).collect();
        self.scheduler.change(|scheduler| {
            let routes = &mut scheduler.routes;
            for waiting in due.iter().rev() {
                routes.put_back(std::slice::from_ref(waiting));
            }
            for host in hosts {
                routes.rest(host, now + REFUSED);
            }
            for waiting in batch {
                routes.done(waiting.route, Ended::Short);
                routes.give_back(waiting);
                if !back.contains(&waiting.due_key) {
                    routes.finish(waiting.due_key);
                }
            }
        });
    }

    /// Claims messages one by one. Those that cannot be claimed now wait again.
    async fn claim_each(&self, due: Vec<Scheduled>) -> Vec<Claim> {
        let mut claims = Vec::new();
        for waiting in due {
            if let Ok(claim) = self.claim(vec![waiting]).await {
                claims.extend(claim);
                continue;
            }
            let until = self.clock.now() + UNREADABLE;
            self.scheduler.change(|scheduler| {
                // It is counted once more, since its batch finishes it as a stale one.
                scheduler.routes.count(waiting.due_key);
                scheduler.postponed.push(waiting, until);
            });
        }
        claims
    }

    /// One attempt at a host.
    async fn attempt(
        self: Arc<Self>,
        waiting: Scheduled,
        claim: Claim,
        permit: OwnedSemaphorePermit,
    ) {
        let route = waiting.route;
        let (result, ended) = self.deliver(&claim).await;
        let now = self.clock.now();
        let undelivered = match result {
            Ok(()) => {
                self.scheduler.change(|scheduler| {
                    scheduler.routes.went_well(route);
                    if let Ended::Short = ended {
                        scheduler.routes.went_quickly(route, now);
                    }
                    scheduler.routes.done(route, ended);
                });
                self.settle_one(claim, now, Outcome::Delivered).await;
                self.scheduler.finish(&[waiting]);
                return;
            }
            Err(undelivered) => undelivered,
        };
        match undelivered.failure {
            Failure::Unavailable(wait) => {
                self.settle_one(claim, now, Outcome::Released).await;
                self.scheduler.change(|scheduler| {
                    scheduler.routes.put_back(&[waiting]);
                    scheduler.routes.rest(route, now + wait);
                    scheduler.routes.done(route, ended);
                    scheduler.routes.give_back(&waiting);
                });
            }
            Failure::Postponed(wait) if self.scheduler.lock().postponed.has_room() => {
                self.settle_one(claim, now, Outcome::Released).await;
                self.scheduler.change(|scheduler| {
                    scheduler.postponed.push(waiting, now + wait);
                    scheduler.routes.done(route, ended);
                    scheduler.routes.give_back(&waiting);
                });
            }
            _ => {
                self.scheduler.change(|scheduler| {
                    scheduler.routes.went_wrong(route);
                    scheduler.routes.done(route, ended);
                });
                let outcome = self.failed(&claim, undelivered, now);
                self.settle_one(claim, now, outcome).await;
                self.scheduler.finish(&[waiting]);
            }
        }
        drop(permit);
    }

    /// Delivers a message. Answers how that ended, and whether it took long.
    async fn deliver(&self, claim: &Claim) -> (Result<(), Undelivered>, Ended) {
        let Some(callbacks) = &self.sinks.callbacks else {
            let result = Err(Undelivered::retry("there is no sink for callbacks"));
            return (result, Ended::Short);
        };
        // A panic must not leave the message claimed.
        let delivering = caught(|| callbacks.deliver(Firing::from(claim)));
        let mut delivering = std::pin::pin!(delivering);
        if let Ok(result) = tokio::time::timeout(SHORT, &mut delivering).await {
            return (result, Ended::Short);
        }
        self.scheduler
            .change(|scheduler| scheduler.routes.take_long());
        (delivering.await, Ended::Long)
    }

    async fn settle_one(&self, claim: Claim, now: Timestamp, outcome: Outcome) {
        let settlement = Settlement {
            claim,
            now,
            outcome,
        };
        self.settle(vec![settlement]).await;
    }

    async fn settle(&self, settlements: Vec<Settlement>) {
        if settlements.is_empty() {
            return;
        }
        if let Err(error) = self.store.settle(settlements).await {
            // They fire again when the store is opened the next time.
            if let Some(left_out) = self.told.refusals.take() {
                tracing::error!(%error, left_out, "attempts that ended cannot be noted");
            }
        }
    }
}

/// A delivery whose panic is a failure.
async fn caught<'a>(
    deliver: impl FnOnce() -> BoxFuture<'a, Result<(), Undelivered>>,
) -> Result<(), Undelivered> {
    // How far it came is not known.
    let broke_off = || Err(Undelivered::unknown("the attempt broke off: it panicked"));
    let Ok(mut delivering) = catch_unwind(AssertUnwindSafe(deliver)) else {
        return broke_off();
    };
    std::future::poll_fn(|context| {
        let poll = || delivering.as_mut().poll(context);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(broke_off()),
        }
    })
    .await
}

impl From<&Claim> for Firing {
    fn from(claim: &Claim) -> Self {
        Self {
            message: claim.message.clone(),
        }
    }
}

impl From<&Claim> for Scheduled {
    /// How the message waits once its claim is released.
    fn from(claim: &Claim) -> Self {
        Self {
            due_key: claim.due_key,
            version: claim.before,
            route: Route::of(&claim.message.target),
            payload_bytes: change::payload_bytes(&claim.message),
        }
    }
}

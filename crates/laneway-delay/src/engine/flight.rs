//! One batch on its way: claim, deliver, settle.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::Core;
use super::front::Flight;
use crate::store::{Claim, Outcome, Route, Settlement, Waiting};
use crate::{Failure, Firing, Undelivered};

impl Core {
    /// Claims a batch. Those that turn out to be early (the clock went back) wait again.
    ///
    /// IMPORTANT: whoever is not due by the time that the claim is made with must not be forgotten. The
    /// others that cannot be claimed have been withdrawn, moved or claimed already: their entries are stale.
    async fn claim(&self, batch: Vec<Waiting>) -> Result<Vec<Claim>, Vec<Waiting>> {
        let now = self.clock.now();
        let (due, early): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|waiting| waiting.place.at <= now);
        if !early.is_empty() {
            self.front.change(|front| {
                for waiting in &early {
                    front.horizon.admit(waiting);
                }
            });
        }
        match self.store.claim(due.clone(), now).await {
            Ok(claims) => Ok(claims),
            Err(error) => {
                tracing::error!(%error, "messages that are due cannot be claimed");
                Err(due)
            }
        }
    }

    /// How every flight begins: with its claims, and with permits that it holds until they are settled.
    /// Nothing if the engine is closed, or if nothing can be claimed now: then the batch waits again.
    async fn board(
        &self,
        flight: Flight,
        route: Route,
        batch: Vec<Waiting>,
    ) -> Option<(Vec<Claim>, OwnedSemaphorePermit)> {
        let count = batch.len();
        let needed = u32::try_from(count).unwrap_or(u32::MAX);
        let permits = self.unsettled.clone().acquire_many_owned(needed);
        let permits = permits.await.ok()?;
        if self.is_closed() {
            return None;
        }
        match self.claim(batch).await {
            Ok(claims) => Some((claims, permits)),
            Err(due) => {
                let now = self.clock.now();
                self.front.change(|front| {
                    front.routes.put_back(&due, now);
                    front.routes.done(route, count);
                    front.land(flight);
                });
                None
            }
        }
    }

    pub(super) async fn fly_to_bus(
        self: Arc<Self>,
        flight: Flight,
        route: Route,
        batch: Vec<Waiting>,
    ) {
        let count = batch.len();
        let Some((claims, permits)) = self.board(flight, route, batch).await else {
            return;
        };
        let (settlements, released) = self.publish(claims).await;
        if released.is_empty() {
            // The next batch need not wait until this one is settled.
            self.front.change(|front| {
                front.routes.went_well(route);
                front.routes.done(route, count);
            });
            self.settle(settlements).await;
            self.front.lock().land(flight);
        } else {
            let waiting: Vec<_> = released.iter().map(Waiting::from).collect();
            let now = self.clock.now();
            let released = released.into_iter().map(|claim| Settlement {
                claim,
                now,
                outcome: Outcome::Released,
            });
            self.settle(settlements.into_iter().chain(released).collect())
                .await;
            self.front.change(|front| {
                front.routes.put_back(&waiting, now);
                front.routes.done(route, count);
                front.land(flight);
            });
        }
        drop(permits);
    }

    /// Publishes claims. Answers what became of them, and those that the bus cannot take now.
    async fn publish(&self, claims: Vec<Claim>) -> (Vec<Settlement>, Vec<Claim>) {
        if claims.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let Some(bus) = &self.sinks.bus else {
            return (Vec::new(), claims);
        };
        let firings = claims.iter().map(Firing::from).collect();
        let results = bus.publish(firings).await;
        let now = self.clock.now();
        let (mut settlements, mut released) = (Vec::with_capacity(claims.len()), Vec::new());
        let mut results = results.into_iter();
        for claim in claims {
            let result = results
                .next()
                .unwrap_or_else(|| Err(Undelivered::retry("the bus gave no answer")));
            let outcome = match result {
                Ok(()) => Outcome::Delivered,
                Err(undelivered) if undelivered.failure == Failure::Permanent => {
                    Outcome::Failed(undelivered, self.options.schedule(&claim.message))
                }
                Err(undelivered) => {
                    if released.is_empty() {
                        tracing::warn!(
                            topic = claim.message.topic,
                            reason = undelivered.reason,
                            "the bus takes nothing now; it is tried again"
                        );
                    }
                    released.push(claim);
                    continue;
                }
            };
            settlements.push(Settlement {
                claim,
                now,
                outcome,
            });
        }
        (settlements, released)
    }

    pub(super) async fn fly_to_host(
        self: Arc<Self>,
        flight: Flight,
        route: Route,
        batch: Vec<Waiting>,
    ) {
        let count = batch.len();
        let Some((claims, permits)) = self.board(flight, route, batch).await else {
            return;
        };
        let unclaimed = count - claims.len();
        if unclaimed > 0 {
            self.front
                .change(|front| front.routes.done(route, unclaimed));
        }
        let attempts: Vec<_> = claims
            .into_iter()
            .map(|claim| tokio::spawn(self.clone().attempt(route, claim)))
            .collect();
        for attempt in attempts {
            if let Err(error) = attempt.await {
                tracing::error!(%error, "an attempt could not be settled");
            }
        }
        self.front.lock().land(flight);
        drop(permits);
    }

    /// One attempt at a host.
    async fn attempt(self: Arc<Self>, route: Route, claim: Claim) {
        let firing = Firing::from(&claim);
        let core = self.clone();
        // A panic must not leave the message claimed.
        let delivering = tokio::spawn(async move {
            match &core.sinks.callbacks {
                Some(callbacks) => callbacks.deliver(firing).await,
                None => Err(Undelivered::retry("nobody serves callbacks")),
            }
        });
        let result = delivering.await.unwrap_or_else(|error| {
            Err(Undelivered::retry(format!(
                "the attempt broke off: {error}"
            )))
        });
        self.front.change(|front| {
            front.routes.went_well(route);
            front.routes.done(route, 1);
        });
        let outcome = match result {
            Ok(()) => Outcome::Delivered,
            Err(undelivered) => Outcome::Failed(undelivered, self.options.schedule(&claim.message)),
        };
        let now = self.clock.now();
        self.settle(vec![Settlement {
            claim,
            now,
            outcome,
        }])
        .await;
    }

    async fn settle(&self, settlements: Vec<Settlement>) {
        if settlements.is_empty() {
            return;
        }
        if let Err(error) = self.store.settle(settlements).await {
            // They fire again when the store is opened the next time.
            tracing::error!(%error, "attempts that ended cannot be noted");
        }
    }
}

impl From<&Claim> for Firing {
    fn from(claim: &Claim) -> Self {
        Self {
            message: claim.message.clone(),
        }
    }
}

impl From<&Claim> for Waiting {
    /// How the message waits once its claim is released.
    fn from(claim: &Claim) -> Self {
        Self {
            place: claim.place,
            version: claim.before,
            route: Route::of(&claim.message.target),
        }
    }
}

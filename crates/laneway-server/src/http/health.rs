//! Is it alive, can it do its work, which one is it?
//!
//! Alive is what a restart would not help. Ready is what takes messages and can deliver them: the store accepts, the
//! bus answers. [`watch`] looks once a second and logs what changes, so that a server that is not ready has said why.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use laneway::Bus;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{error, info, warn};

use super::App;
use crate::build_info::{BUILD, BuildInfo};
use crate::messages::Messages;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Asking the bus is a way to its server and back.
const ASK_BUS_EVERY: Duration = Duration::from_secs(3);
const BUS_PATIENCE: Duration = Duration::from_secs(3);

/// Whether new requests are welcome. Not any more, once the server is told to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    draining: AtomicBool,
    /// What is wrong with the bus, as of the last look.
    bus: Mutex<Option<String>>,
    /// How often [`watch`] panicked.
    panics: AtomicU64,
}

impl Readiness {
    pub(crate) fn start_draining(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
    }

    /// How often a task of the server panicked and was started again.
    pub(crate) fn panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Runs a task until it ends by itself. If it panics, that is logged and counted, and it is started again.
    pub(crate) async fn supervise<F>(&self, task: &'static str, start: impl Fn() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while let Err(ended) = tokio::spawn(start()).await {
            if !ended.is_panic() {
                return;
            }
            self.inner.panics.fetch_add(1, Ordering::Relaxed);
            error!(task, reason = %ended, "a task panicked, restarting it");
            sleep(LOOK_EVERY).await;
        }
    }

    fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::Relaxed)
    }

    /// Everything that keeps this server from its work; nothing if it is ready.
    pub(crate) fn lacks(&self, delays: &dyn Messages) -> Vec<String> {
        let mut lacks = Vec::new();
        if self.is_draining() {
            lacks.push("draining".to_owned());
        }
        lacks.extend(delays.report().refuses.map(|error| error.to_string()));
        lacks.extend(self.inner.bus.lock().clone());
        lacks.extend(delays.lacks());
        lacks
    }

    /// What people should look at, and what taking the server out of service would make no better.
    pub(crate) fn doubts(delays: &dyn Messages) -> Option<String> {
        let mut health = delays.report();
        health.refuses = None;
        health.has_failed = false;
        let own = (!health.is_well()).then(|| health.to_string());
        let doubts: Vec<String> = own.into_iter().chain(delays.doubts()).collect();
        (!doubts.is_empty()).then(|| doubts.join("; "))
    }

    fn note_bus(&self, trouble: Option<String>) {
        *self.inner.bus.lock() = trouble;
    }
}

/// Looks now and then, and logs when it becomes ready or ceases to be, until the server is told to stop.
pub(crate) async fn watch(app: App, buses: Vec<Bus>) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked: Option<Instant> = None;
    let (mut told, mut doubted) = (Vec::new(), None);
    loop {
        looks.tick().await;
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_BUS_EVERY) {
            let mut trouble = None;
            for bus in &buses {
                trouble = trouble.or(trouble_of(bus).await);
            }
            app.readiness.note_bus(trouble);
            asked = Some(Instant::now());
        }
        if app.readiness.is_draining() {
            return;
        }
        let lacks = app.readiness.lacks(&*app.delays);
        if lacks != told {
            if lacks.is_empty() {
                info!("ready again");
            } else {
                warn!(reason = lacks.join("; "), "not ready");
            }
            told = lacks;
        }
        let doubts = Readiness::doubts(&*app.delays);
        if doubts != doubted {
            if let Some(what) = &doubts {
                warn!(what, "degraded");
            } else {
                info!("not degraded any more");
            }
            doubted = doubts;
        }
    }
}

async fn trouble_of(bus: &Bus) -> Option<String> {
    match timeout(BUS_PATIENCE, bus.health()).await {
        Ok(health) => {
            let broker = health.broker.map(|what| format!("the bus is away: {what}"));
            broker.or_else(|| {
                let states = health.subscriptions.into_iter().map(|one| one.state);
                let mut troubles = states.filter_map(|state| match state {
                    laneway::State::Failing(what) | laneway::State::Stopped(what) => Some(what),
                    _ => None,
                });
                let what = troubles.next()?;
                Some(format!("the bus cannot be read: {what}"))
            })
        }
        Err(_) => Some(format!("the bus gives no answer within {BUS_PATIENCE:?}")),
    }
}

/// That it answers is the answer, unless only a new start can help.
pub(super) async fn live(State(app): State<App>) -> (StatusCode, String) {
    let health = app.delays.report();
    if health.is_live() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{health}\n"))
    }
}

pub(super) async fn ready(State(app): State<App>) -> (StatusCode, String) {
    let lacks = app.readiness.lacks(&*app.delays);
    if lacks.is_empty() {
        let doubts = Readiness::doubts(&*app.delays).map(|what| format!("degraded: {what}\n"));
        (
            StatusCode::OK,
            format!("ready\n{}", doubts.unwrap_or_default()),
        )
    } else {
        let lacks = lacks.join("\n");
        (StatusCode::SERVICE_UNAVAILABLE, format!("{lacks}\n"))
    }
}

pub(super) async fn version() -> Json<BuildInfo> {
    Json(BUILD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_counted_and_started_again_until_it_ends() {
        let readiness = Readiness::default();
        let starts = Arc::new(AtomicU64::new(0));
        let start = || {
            let number = starts.fetch_add(1, Ordering::Relaxed);
            async move { assert!(number >= 2, "number {number}") }
        };
        readiness.supervise("the test", start).await;
        assert_eq!((starts.load(Ordering::Relaxed), readiness.panics()), (3, 2));
    }
}

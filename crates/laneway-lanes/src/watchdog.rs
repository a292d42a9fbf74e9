//! The watchdog: a thread of its own, because handlers can block the runtime's.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use super::engine::Inner;

/// How often it looks.
const TICK: Duration = Duration::from_millis(100);

/// Watches the engine until it is gone.
pub(super) fn spawn(engine: Weak<Inner>) -> io::Result<std::thread::Thread> {
    let handle = std::thread::Builder::new()
        .name("laneway-watchdog".into())
        .spawn(move || {
            let mut arrivals = Vec::new();
            loop {
                std::thread::park_timeout(TICK);
                let Some(engine) = engine.upgrade() else {
                    return;
                };
                if engine.is_stopped() {
                    return;
                }
                let pools = engine.pools();
                arrivals.resize(pools.len(), u64::MAX);
                let mut slow = false;
                for (pool, last) in pools.iter().zip(&mut arrivals) {
                    *last = pool.nudge(*last);
                    for slot in &pool.slots {
                        if slot.runs_for(&pool.clock).is_some_and(|time| time > TICK) {
                            slow = true;
                            // It may be blocking its thread, and cannot do so itself.
                            pool.empty_stash(slot);
                        }
                        if let Some(event) =
                            slot.newly_stuck(&pool.clock, engine.options.stuck_after)
                        {
                            tracing::warn!(?event, "a handler is stuck");
                            pool.teller.tell(|| event);
                        }
                    }
                }
                if slow {
                    engine.rouse();
                }
            }
        })?;
    Ok(handle.thread().clone())
}

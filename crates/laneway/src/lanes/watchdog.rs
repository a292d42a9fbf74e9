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
            let mut handed_out = Vec::new();
            loop {
                std::thread::park_timeout(TICK);
                let Some(engine) = engine.upgrade() else {
                    return;
                };
                if engine.is_closed() {
                    return;
                }
                let crews = engine.crews();
                handed_out.resize(crews.len(), u64::MAX);
                for (crew, last) in crews.iter().zip(&mut handed_out) {
                    *last = crew.nudge(*last);
                    for seat in &crew.seats {
                        if let Some(event) =
                            seat.newly_stuck(crew.clock, engine.options.stuck_after)
                        {
                            tracing::warn!(?event, "a handler is stuck");
                            crew.teller.tell(|| event);
                        }
                    }
                }
            }
        })?;
    Ok(handle.thread().clone())
}

//! Tasks of this crate's own: one that panics is told of and started again.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long a task that panicked waits before it is started again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// For how long a panic counts as something that is wrong now.
const COUNTS_FOR: Duration = Duration::from_mins(10);

/// What a panic was called with.
type Panic = Box<dyn Any + Send>;

/// Which tasks panicked, for health and figures.
#[derive(Debug, Default)]
pub(crate) struct Panics {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    total: u64,
    last: Option<(Instant, String)>,
}

impl Panics {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Notes the panic of a task, and logs it.
    pub(crate) fn note(&self, task: &'static str, panic: &Panic) {
        let reason = text(panic);
        tracing::error!(task, reason, "a task panicked, restarting it");
        let mut state = self.state();
        state.total += 1;
        state.last = Some((Instant::now(), format!("{task}: {reason}")));
    }

    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        self.state().total
    }

    /// The last one, if it is not long ago: its task, and why.
    pub(crate) fn recent(&self) -> Option<String> {
        let state = self.state();
        let (at, what) = state.last.as_ref()?;
        (at.elapsed() < COUNTS_FOR).then(|| what.clone())
    }
}

/// Runs a task until it ends by itself. If it panics, that is noted, and it is started again after a pause that
/// gets longer while it goes on panicking.
pub(crate) async fn supervise<F: Future<Output = ()>>(
    panics: &Panics,
    task: &'static str,
    mut start: impl FnMut() -> F,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let Err(panic) = catch(async { start().await }).await else {
            return;
        };
        panics.note(task, &panic);
        if began.elapsed() > COUNTS_FOR {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// What something comes to, or the panic that it ended with.
pub(crate) async fn catch<T>(work: impl Future<Output = T>) -> Result<T, Panic> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

fn text(panic: &Panic) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it gave no reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_noted_and_started_again_until_it_ends() {
        let panics = Panics::default();
        let mut starts = 0;
        let began = Instant::now();
        supervise(&panics, "the test", || {
            starts += 1;
            let number = starts;
            async move {
                tokio::task::yield_now().await;
                assert!(number > 3, "number {number}");
            }
        })
        .await;
        assert_eq!((starts, panics.total()), (4, 3));
        assert_eq!(began.elapsed(), 7 * FIRST_PAUSE, "each pause is longer");
        assert_eq!(panics.recent().as_deref(), Some("the test: number 3"));
        tokio::time::advance(COUNTS_FOR).await;
        assert_eq!(panics.recent(), None);
    }
}

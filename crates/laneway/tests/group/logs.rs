//! What is logged.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span, subscriber};

/// Remembers what is logged as information or worse on this thread. A runtime of one thread logs all there.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Remembers from now on, until the guard is dropped.
    pub(crate) fn begin() -> (Self, subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = subscriber::set_default(log.clone());
        (log, guard)
    }

    /// The lines that have all of these texts, and begin with their level.
    pub(crate) fn with(&self, texts: &[&str]) -> Vec<String> {
        let lines = self.0.lock().expect("no panic");
        let has_all = |line: &&String| texts.iter().all(|text| line.contains(text));
        lines.iter().filter(has_all).cloned().collect()
    }
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut Line(&mut line));
        self.0.lock().expect("no panic").push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

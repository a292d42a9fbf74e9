use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use laneway_cluster::record::Instance;
use laneway_delay::Sinks;
use laneway_delay::clock::{Clock, SystemClock};

/// Time that only goes ahead, also while the machine sleeps, from any beginning.
pub type Counter = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How a worker works.
///
/// ```
/// use laneway_cluster::record::Instance;
/// use laneway_delay::Sinks;
/// use laneway_worker::Options;
///
/// let options = Options {
///     credit: 1_024,
///     ..Options::new("shop", Instance([7; 16]), "worker-1", Sinks::default())
/// };
/// assert_eq!(options.start_within.as_secs(), 3);
/// ```
#[derive(Clone)]
pub struct Options {
    /// The cluster that it belongs to. A center of another one is refused.
    pub cluster: String,
    /// The process: drawn when it started.
    pub instance: Instance,
    /// Its name, for people.
    pub name: String,
    /// Where attempts go.
    pub sinks: Sinks,
    /// Slots, budgets and batches, as on one machine. Its retry schedules decide nothing here: the owner decides about the next
    /// attempt.
    pub limits: laneway_delay::Options,
    /// How many attempts of one center there are at most: those that wait, run, or have an outcome that is not logged.
    pub credit: u32,
    /// How many bytes of payloads wait or are on their way, about. Above it no credit is granted, and further attempts are handed
    /// back.
    pub held_bytes: usize,
    /// START: an attempt that was not started this long after its moment, or after it came if that was later, is handed back.
    pub start_within: Duration,
    /// How often outcomes are offered again that are not logged.
    pub offer_every: Duration,
    /// How long a center may leave the stream full before the connection is given up.
    pub stalled_after: Duration,
    /// By which moments come.
    pub clock: Arc<dyn Clock>,
    /// What `start_within` is measured with. The default counts the time that the machine sleeps, too.
    pub counter: Counter,
}

impl Options {
    /// With default limits and the clock of the system.
    #[must_use]
    pub fn new(
        cluster: impl Into<String>,
        instance: Instance,
        name: impl Into<String>,
        sinks: Sinks,
    ) -> Self {
        Self {
            cluster: cluster.into(),
            instance,
            name: name.into(),
            sinks,
            limits: laneway_delay::Options::default(),
            credit: 4_096,
            held_bytes: 256 << 20,
            start_within: Duration::from_secs(3),
            offer_every: Duration::from_secs(5),
            stalled_after: Duration::from_secs(10),
            clock: Arc::new(SystemClock::default()),
            counter: Arc::new(since_boot),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .field("sinks", &self.sinks)
            .field("credit", &self.credit)
            .field("held_bytes", &self.held_bytes)
            .field("start_within", &self.start_within)
            .finish_non_exhaustive()
    }
}

fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

//! How many files and connections the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

use crate::config::Config;

/// The log, the store, the listener and what else is always open, generously.
const BASE: u64 = 512;

/// Takes as many as the system gives. Most systems start programs with 1,024 and let them ask for more.
pub(crate) fn raise(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            debug!(%error, "cannot raise the limit of open files");
            limit.current
        }
    };
    let Wanted {
        least,
        waiting,
        idle,
    } = Wanted::of(config);
    let wanted = least + waiting + idle;
    if let Some(current) = current.filter(|current| *current < wanted) {
        warn!(
            current,
            wanted,
            "few open files are allowed: fewer callbacks wait for slow receivers at once. Raise the limit \
             (ulimit -n), or lower serve.max_connections and callback.total"
        );
    }
}

/// How many connections of callbacks there may be beside those that begin or are answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// That wait for their receivers.
    pub(crate) waiting: usize,
    /// That are kept for the next callback.
    pub(crate) idle: usize,
}

/// As many as are wanted, if the system gives them.
pub(crate) fn budget(config: &Config) -> Budget {
    shared(
        Wanted::of(config),
        getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    )
}

fn shared(wanted: Wanted, allowed: u64) -> Budget {
    let spare = allowed.saturating_sub(wanted.least);
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Budget {
        waiting: number(wanted.waiting.min(spare / 4 * 3)),
        idle: number(wanted.idle.min(spare / 4)),
    }
}

/// What this process would have open at most.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    least: u64,
    waiting: u64,
    idle: u64,
}

impl Wanted {
    fn of(config: &Config) -> Self {
        let callbacks = u64::from(config.callback.total);
        Self {
            least: BASE + u64::from(config.serve.max_connections) + callbacks,
            waiting: 8 * callbacks,
            idle: callbacks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_and_what_is_kept_fits_into_what_is_allowed() {
        let wanted = Wanted {
            least: 2048,
            waiting: 8192,
            idle: 1024,
        };
        let all = shared(wanted, 1_000_000);
        assert_eq!((all.waiting, all.idle), (8192, 1024));
        for allowed in [1024, 2048, 2400, 4096, 9000] {
            let some = shared(wanted, allowed);
            let sum = wanted.least + (some.waiting + some.idle) as u64;
            assert!(sum <= allowed.max(wanted.least), "{some:?} of {allowed}");
        }
    }
}

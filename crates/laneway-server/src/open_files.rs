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
    let wanted = BASE + u64::from(config.serve.max_connections) + u64::from(config.callback.total);
    if let Some(current) = current.filter(|current| *current < wanted) {
        warn!(
            current,
            wanted,
            "few open files are allowed: raise the limit (ulimit -n), or lower serve.max_connections \
             and callback.total"
        );
    }
}

//! Ctrl-C and SIGTERM: what this program started for itself is stopped before it ends.

use std::process::exit;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::process::{self, Process};
use super::release_interrupted;

/// Taken for every start of a server together with its entry in the ledger, and for the start of
/// the command. Taken for good on interruption, so that nothing starts while everything stops.
static STARTS: Mutex<()> = Mutex::new(());

/// The command of `services run`, which goes before its servers do.
static COMMAND: Mutex<Option<Process>> = Mutex::new(None);

/// How long that command may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whatever starts is started while this is held.
pub(crate) fn start_permit() -> MutexGuard<'static, ()> {
    STARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which command, if any, is to end before the servers do.
pub(crate) fn set_command(command: Option<Process>) {
    *COMMAND.lock().unwrap_or_else(PoisonError::into_inner) = command;
}

/// From now on an interruption stops the servers.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    end(signal);
                }
            });
        }
        Err(error) => eprintln!("Ctrl-C will leave the servers running: {error}"),
    });
}

fn end(signal: i32) -> ! {
    let _permit = start_permit();
    let command = *COMMAND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(command) = command {
        // Ctrl-C reached it as well, through the terminal; the other signals were meant for us only.
        if signal != SIGINT {
            command.terminate();
        }
        if !command.ends_within(PATIENCE) {
            let _ = process::stop(&[command]);
        }
    }
    if let Err(error) = release_interrupted() {
        eprintln!("{error:#}");
    }
    exit(128 + signal)
}

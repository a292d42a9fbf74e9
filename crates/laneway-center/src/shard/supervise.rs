//! Starts the task of a shard again, until it has crashed too often.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::event::{Assigned, Event, IntakeError};
use super::{Ending, Task, directory, open};
use crate::crashes::Crashes;
use crate::shared::Shared;
use crate::stats::count;

/// Between two tries of what failed for a reason that may go away.
const PAUSE: Duration = Duration::from_millis(500);

/// Between two tries of what only an operator can mend.
const HALTED: Duration = Duration::from_secs(30);

/// Runs a shard until the center stops.
pub(crate) async fn supervise(
    shared: Arc<Shared>,
    number: u32,
    mut mailbox: mpsc::Receiver<Event>,
    mut assigned: Assigned,
) {
    let crashes = Crashes::of(&directory(&shared.directory, number));
    let mut must_rebuild = false;
    loop {
        let state = &shared.states[number as usize];
        if crashes.is_quarantined(shared.clock.now()) {
            state.stop("it crashed too often on this center, and is quarantined");
            tracing::error!(
                shard = number,
                "a shard has crashed too often and is quarantined on this center"
            );
            refuse_for(&mut mailbox, &assigned, HALTED).await;
            continue;
        }
        let running = run(&shared, number, must_rebuild, &mut mailbox, &mut assigned);
        must_rebuild = false;
        let pause = match AssertUnwindSafe(running).catch_unwind().await {
            Ok(Ending::Stopped) => return,
            Ok(Ending::OtherLog) => {
                must_rebuild = true;
                Duration::ZERO
            }
            Ok(Ending::Halted(stop)) => {
                tracing::error!(shard = number, %stop, "a shard goes no further on this center");
                state.stop(&stop.to_string());
                HALTED
            }
            Ok(Ending::View(error)) => {
                tracing::error!(shard = number, %error, "the view of a shard failed, opening it again");
                state.stop(&error);
                PAUSE
            }
            Err(_) => {
                count(&shared.counters.crashes);
                let is_quarantined = crashes.note(shared.clock.now());
                tracing::error!(
                    shard = number,
                    is_quarantined,
                    "the task of a shard has crashed"
                );
                if is_quarantined {
                    count(&shared.counters.quarantined);
                }
                PAUSE
            }
        };
        shared.lost(number);
        refuse_for(&mut mailbox, &assigned, pause).await;
    }
}

async fn run(
    shared: &Arc<Shared>,
    number: u32,
    must_rebuild: bool,
    mailbox: &mut mpsc::Receiver<Event>,
    assigned: &mut Assigned,
) -> Ending {
    let opened = loop {
        match open::open(shared, number, must_rebuild).await {
            Ok(opened) => break opened,
            Err(open::OpenError::Log(error)) => {
                tracing::warn!(shard = number, %error, "a shard cannot be opened, retrying");
                if assigned.has_changed().is_err() {
                    return Ending::Stopped;
                }
                refuse_for(mailbox, assigned, PAUSE).await;
            }
            Err(error) => return error.into(),
        }
    };
    let state = &shared.states[number as usize];
    state.runs(opened.table().view.reader());
    let mut task = Task::new(shared.clone(), number, opened);
    let head = task.shard.head();
    let records = head.next - head.open.map_or(0, |open| open.offset).min(head.next);
    task.upkeep.resumed(records);
    task.run(mailbox, assigned).await
}

/// Sends callers elsewhere for a while.
async fn refuse_for(mailbox: &mut mpsc::Receiver<Event>, assigned: &Assigned, pause: Duration) {
    let until = Instant::now() + pause;
    loop {
        tokio::select! {
            event = mailbox.recv() => match event {
                // To drop the others is an answer: their callers hear that nothing was decided.
                Some(Event::Intake { done, .. }) => {
                    let _ = done.send(Err(IntakeError::NotOwner));
                }
                Some(_) => {}
                None => return,
            },
            () = sleep_until(until) => return,
        }
        if assigned.has_changed().is_err() {
            sleep(Duration::ZERO).await;
            return;
        }
    }
}

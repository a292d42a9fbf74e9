use std::time::Duration;

use super::scenario::{Asked, Scenario, Submitted, accepted, command, failed, submitted};
use super::steps::Step;
use super::world::start;
use crate::owner::{Order, Outcome};
use crate::record::{Key, RequestDigest};

/// Whether to take the time for the wide bounds: `LANEWAY_MODEL=full`.
pub(super) fn is_full() -> bool {
    std::env::var("LANEWAY_MODEL").is_ok_and(|value| value == "full")
}

/// A bound: as wide as two minutes on two cores allow for all scenarios together, or wider.
pub(super) fn bound<T>(narrow: T, wide: T) -> T {
    if is_full() { wide } else { narrow }
}

/// One message, attempts, a withdraw, a takeover.
pub(super) fn withdraw() -> Scenario {
    Scenario {
        commands: vec![command(0, Order::Withdraw)],
        log: bound(8, 9),
        ..Scenario::default()
    }
}

/// The same with a worker that crashes, and attempts that fail.
pub(super) fn crash() -> Scenario {
    Scenario {
        crashes: bound(1, 2),
        log: bound(7, 8),
        attempts: bound(1, 2),
        outcomes: vec![Outcome::Delivered, failed()],
        ..withdraw()
    }
}

/// Two centers announce themselves at once.
pub(super) fn announcements() -> Scenario {
    Scenario {
        prelude: Vec::new(),
        epochs: 3,
        log: bound(5, 6),
        attempts: 1,
        ..withdraw()
    }
}

/// Commands with keys, sent again.
pub(super) fn keys() -> Scenario {
    let key = Key([7; 16]);
    let digest = |number| RequestDigest([number; 32]);
    let keyed = |order, number| Asked {
        key: Some((key, digest(number))),
        ..command(0, order)
    };
    Scenario {
        commands: vec![keyed(Scenario::later(), 1), keyed(Order::Withdraw, 2)],
        sends: 2,
        attempts: 1,
        asks: 0,
        log: bound(6, 7),
        ..Scenario::default()
    }
}

/// A message that only the second owner knows of.
pub(super) fn look_up() -> Scenario {
    let id = submitted(1).id;
    let (order, key) = (None, None);
    Scenario {
        submits: vec![submitted(0), submitted(1)],
        commands: vec![Asked { id, order, key }],
        attempts: bound(0, 1),
        log: bound(7, 9),
        ..Scenario::default()
    }
}

/// The same id twice in the intake: the same request, or another one.
pub(super) fn intake() -> Scenario {
    let waits = |request, late| Submitted {
        request,
        waits: true,
        due: start() + late,
        ..submitted(0)
    };
    let second = Duration::from_secs(1);
    Scenario {
        submits: vec![waits(0, Duration::ZERO), waits(0, second), waits(1, second)],
        prelude: Vec::new(),
        attempts: 0,
        asks: 0,
        crashes: bound(0, 1),
        log: bound(5, 6),
        ..Scenario::default()
    }
}

/// What ended is forgotten, and its record of the intake is read once more.
pub(super) fn forgetting() -> Scenario {
    Scenario {
        commands: vec![command(0, Order::Withdraw)],
        passes: 2,
        retakes: 1,
        forgets: true,
        attempts: 0,
        asks: 0,
        epochs: 2,
        log: bound(8, 9),
        ..Scenario::default()
    }
}

/// Appends without an answer.
pub(super) fn unknown_appends() -> Scenario {
    Scenario {
        commands: vec![command(0, Order::Withdraw)],
        epochs: bound(1, 2),
        resends: 2,
        twice: 1,
        attempts: 2,
        log: 6,
        ..Scenario::default()
    }
}

/// The log is made complete by itself while messages change, and trimmed.
pub(super) fn trimming() -> Scenario {
    Scenario {
        submits: vec![submitted(0), submitted(1)],
        prelude: accepted(2),
        commands: vec![command(0, Scenario::later())],
        opens: 2,
        attempts: 0,
        crashes: bound(1, 2),
        log: 12,
        ..Scenario::default()
    }
}

/// A dead message is replayed.
pub(super) fn replaying() -> Scenario {
    let dies = Outcome::Failed {
        reason: String::new(),
        after: Duration::ZERO,
        is_final: true,
    };
    let to = submitted(9).id;
    let first = submitted(0).id;
    let mut prelude = accepted(1);
    prelude.extend([
        Step::Begin(0, first.clone(), 0),
        Step::Land(0),
        Step::Read(0),
        Step::Arrive(0),
        Step::Start(0, first.clone(), 1),
        Step::End(0, first.clone(), 1, 1),
        Step::Report(0, first, 1, 0),
        Step::Land(0),
        Step::Read(0),
    ]);
    Scenario {
        prelude,
        outcomes: vec![Outcome::Delivered, dies],
        commands: vec![command(0, Order::Replay { to })],
        attempts: 1,
        crashes: 1,
        log: bound(9, 11),
        heals_everywhere: true,
        ..Scenario::default()
    }
}

/// The view of a copy goes wrong before it takes over.
pub(super) fn damage() -> Scenario {
    let id = submitted(0).id;
    let (order, key) = (None, None);
    Scenario {
        commands: vec![Asked { id, order, key }],
        damage: true,
        attempts: 1,
        log: bound(6, 8),
        prelude: accepted(1).into_iter().chain([Step::Catch(1)]).collect(),
        ..Scenario::default()
    }
}

/// Everything at once, at the bounds of the design: two ids, three epochs, two attempts, two commands, a log of twelve, two
/// crashes. Too much for every interleaving, so it is walked through at random.
pub(super) fn everything() -> Scenario {
    let keyed = |number: u8, order| Asked {
        key: Some((Key([number; 16]), RequestDigest([number; 32]))),
        ..command(number, order)
    };
    Scenario {
        submits: vec![submitted(0), submitted(1)],
        prelude: Vec::new(),
        commands: vec![keyed(0, Order::Withdraw), keyed(1, Scenario::later())],
        outcomes: vec![Outcome::Delivered, failed(), Outcome::Unknown],
        epochs: 3,
        attempts: 2,
        log: 12,
        crashes: 2,
        resends: 1,
        twice: 1,
        asks: 2,
        passes: 2,
        opens: 1,
        retakes: 1,
        forgets: true,
        workers: 2,
        sends: 2,
        heals_everywhere: false,
        ..Scenario::default()
    }
}

/// A message that has ended is looked up at the next owner.
pub(super) fn look_up_ended() -> Scenario {
    let id = submitted(0).id;
    let (order, key) = (None, None);
    Scenario {
        commands: vec![command(0, Order::Withdraw), Asked { id, order, key }],
        attempts: 0,
        ..Scenario::default()
    }
}

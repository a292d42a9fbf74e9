//! What is broken, in which order, drawn from the dice of the run.

use std::fmt;
use std::time::Duration;

use rand::{Rng, RngExt};

use super::stack::Stack;

/// The roles that processes have here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Receive,
    Center,
    Worker,
}

impl Role {
    pub(super) const ALL: [Self; 3] = [Self::Receive, Self::Center, Self::Worker];

    /// How many processes there are.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Receive => 2,
            Self::Center | Self::Worker => 3,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Center => "center",
            Self::Worker => "worker",
        }
    }
}

/// One process, by its role and number.
pub(super) type Who = (Role, usize);

/// What is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9, and started again.
    Kill(Who),
    /// Stopped in the middle of whatever it does, and woken up.
    Freeze(Who),
    /// SIGTERM, and started again.
    Roll(Who),
    /// A center is killed, its views are gone when it starts.
    LoseViews(usize),
    /// All of a role are killed at once.
    KillAll(Role),
    /// The server of the log is killed.
    KillServer,
    /// Its connections to the log and the registry end, and so do those of other processes to it.
    Cut(Who),
    /// All processes and servers are killed.
    KillEverything,
    /// The registry is killed where it is a server of its own.
    KillRegistry,
    /// It is killed, and starts with a clock that is so many seconds ahead, which is put right while it runs.
    Clock(Who, i64),
}

/// A step of the plan.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) fault: Fault,
    /// How long it lasts.
    pub(super) away: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, fault, away } = self;
        let who = |(role, number): &Who| format!("{}-{}", role.name(), number + 1);
        match fault {
            Fault::Kill(it) => write!(f, "kill -9 {}", who(it)),
            Fault::Freeze(it) => write!(f, "freeze {}", who(it)),
            Fault::Roll(it) => write!(f, "SIGTERM {}", who(it)),
            Fault::LoseViews(number) => {
                write!(f, "kill -9 center-{} and remove its views", number + 1)
            }
            Fault::KillAll(role) => write!(f, "kill -9 every {}", role.name()),
            Fault::KillServer => write!(f, "kill -9 the server of the log"),
            Fault::Cut(it) => write!(f, "cut the connections of {}", who(it)),
            Fault::KillEverything => write!(f, "kill -9 everything"),
            Fault::KillRegistry => write!(f, "kill -9 the registry"),
            Fault::Clock(it, seconds) => {
                write!(f, "kill -9 {} and set its clock {seconds} s ahead", who(it))
            }
        }?;
        write!(f, " after {after:?}, heal {away:?} later")
    }
}

/// Kinds of faults: those of the short run come first, those that a stack does not have last.
const SHORT_KINDS: usize = 8;
const NATS_KINDS: usize = 11;
const KAFKA_KINDS: usize = 12;

const AN_HOUR: i64 = 3_600;
const A_MINUTE: u64 = 60_000;

/// So many steps, each kind about equally often. `session` is how long a center may be silent.
pub(super) fn draw(
    dice: &mut impl Rng,
    stack: Stack,
    session: Duration,
    is_full: bool,
) -> Vec<Step> {
    let (count, kinds_here) = match (is_full, stack) {
        (false, _) => (8, SHORT_KINDS),
        (true, Stack::Nats) => (312, NATS_KINDS),
        (true, Stack::Kafka) => (312, KAFKA_KINDS),
    };
    let session = u64::try_from(session.as_millis()).unwrap_or(3_000);
    let mut kinds = Vec::new();
    while kinds.len() < count {
        let mut round: Vec<usize> = (0..kinds_here).collect();
        while !round.is_empty() {
            kinds.push(round.swap_remove(dice.random_range(0..round.len())));
        }
    }
    kinds.truncate(count);
    kinds
        .into_iter()
        .map(|kind| {
            let fault = fault(kind, dice);
            let away = match fault {
                // Three sessions in the long run, about as often as anything up to that.
                Fault::Freeze(_) if is_full && dice.random_bool(0.5) => {
                    3 * session..3 * session + 1
                }
                Fault::Freeze(_) if !is_full => 500..3 * session / 2,
                Fault::Freeze(_) | Fault::Cut(_) => 500..3 * session,
                Fault::KillRegistry if dice.random_bool(0.25) => A_MINUTE..A_MINUTE + 1,
                Fault::KillRegistry => 1_000..3 * session,
                Fault::Clock(..) => 2_000..8_000,
                Fault::KillAll(_) | Fault::KillServer | Fault::KillEverything => 200..session / 2,
                _ => 0..1_500,
            };
            let after = if is_full { 1_000..4_000 } else { 500..1_500 };
            Step {
                after: Duration::from_millis(dice.random_range(after)),
                fault,
                away: Duration::from_millis(dice.random_range(away)),
            }
        })
        .collect()
}

fn fault(kind: usize, dice: &mut impl Rng) -> Fault {
    let mut one = |role: Role| (role, dice.random_range(0..role.count()));
    match kind {
        0 => Fault::Kill(one(Role::Center)),
        1 => Fault::Kill(one(Role::Worker)),
        2 => {
            let role = Role::ALL[one(Role::Center).1];
            match one(Role::Receive).1 {
                0 => Fault::Kill(one(Role::Receive)),
                _ => Fault::Roll(one(role)),
            }
        }
        3 => {
            let role = Role::ALL[one(Role::Center).1];
            Fault::Freeze(one(role))
        }
        4 => {
            let role = Role::ALL[one(Role::Center).1];
            Fault::Roll(one(role))
        }
        5 => Fault::LoseViews(one(Role::Center).1),
        6 => match one(Role::Receive).1 {
            0 => Fault::KillAll(Role::Center),
            _ => Fault::KillAll(Role::Worker),
        },
        7 => Fault::KillServer,
        8 => {
            let role = Role::ALL[one(Role::Center).1];
            Fault::Cut(one(role))
        }
        9 => Fault::KillEverything,
        10 => {
            let role = [Role::Center, Role::Worker][one(Role::Receive).1];
            let seconds = [AN_HOUR, -AN_HOUR][one(Role::Receive).1];
            Fault::Clock(one(role), seconds)
        }
        _ => Fault::KillRegistry,
    }
}

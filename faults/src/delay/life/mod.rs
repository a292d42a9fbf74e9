//! The life of the store of delayed messages: everything that can happen to it, in random order, against a model.
//!
//! It runs in this process, by a clock and on a disk of its own, so that a life is fast and follows from its seed. Rows go
//! to files after 16 KiB, so that files are written, merged and cut hundreds of times. After every reopen all
//! promises are checked: nothing that was accepted is missing, nothing was early, nothing fired after a yes to a withdraw, and
//! lists, counts and single messages agree.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `clock`, `disk`, `witness` | what the store is given |
//! | `world`, `asked` | the store and the model, and what is done to both |
//! | `trouble`, `wear` | what goes wrong, at once and with time |
//! | `judge` | what must hold |

mod asked;
mod clock;
mod disk;
mod judge;
mod trouble;
mod wear;
mod witness;
mod world;

use std::time::Instant;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::world::World;
use crate::frame::Run;
use crate::lives::{Times, draw};
use crate::verdict::Verdict;

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit,
    Again,
    Extend,
    Withdraw,
    Stop,
    Doubt,
    Key,
    KeyAgain,
    Replace,
    Purge,
    Replay,
    Idle,
    SetClock,
    Glitch,
    RestartAhead,
    Forget,
    Reopen,
    Kill,
    PowerCut,
    FailedSync,
    NoDescriptor,
    FullDisk,
    FlippedBit,
    FlipAny,
}

const STEPS: &[(u32, Step)] = &[
    (30, Step::Submit),
    (4, Step::Again),
    (10, Step::Extend),
    (10, Step::Withdraw),
    (3, Step::Stop),
    (2, Step::Doubt),
    (4, Step::Key),
    (4, Step::KeyAgain),
    (6, Step::Replace),
    (3, Step::Purge),
    (4, Step::Replay),
    (16, Step::Idle),
    (4, Step::SetClock),
    (1, Step::Glitch),
    (1, Step::RestartAhead),
    (1, Step::Forget),
    (10, Step::Reopen),
    (6, Step::Kill),
    (8, Step::PowerCut),
    (2, Step::FailedSync),
    (2, Step::NoDescriptor),
    (1, Step::FullDisk),
    (2, Step::FlippedBit),
    (3, Step::FlipAny),
];

/// So many messages come first.
const FIRST: usize = 20;
/// After so many steps a store begins anew: all that it ever had is compared at every reopen.
const GENERATION: usize = 300;

/// Lets stores live, one after the other, until the time is up or one is broken.
///
/// # Errors
/// If it could not be judged.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let until = Instant::now() + run.lifetime();
    let mut verdict = Verdict::new();
    for number in 1.. {
        let seed: u64 = run.dice().random();
        run.note(format_args!("store {number}"));
        verdict = verdict.plus(generation(run, StdRng::seed_from_u64(seed), until)?);
        if !verdict.passes() || Instant::now() >= until {
            break;
        }
    }
    Ok(verdict)
}

/// One store, from its first message to its last.
fn generation(run: &mut Run, dice: StdRng, until: Instant) -> Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        let mut world = World::begin(dice).await?;
        let mut times = Times::default();
        // Some messages first, then each kind of step once, however short the life is, and then whatever comes.
        let first = std::iter::repeat_n(Step::Submit, FIRST);
        let known: Vec<Step> = first.chain(STEPS.iter().map(|(_, step)| *step)).collect();
        for number in 0..GENERATION {
            let step = match known.get(number) {
                Some(step) => *step,
                None if Instant::now() >= until => break,
                None => *draw(&mut world.dice, STEPS),
            };
            let before = world.wrong.len();
            let began = Instant::now();
            let done = live(&mut world, step).await;
            done.with_context(|| format!("step {number}, {step:?}"))?;
            times.add(step, began.elapsed());
            world.steps += 1;
            world.judge_deliveries();
            for wrong in &world.wrong[before..] {
                run.note(format_args!("step {number}, {step:?}: {wrong}"));
            }
            if world.wrong.len() > 20 {
                break;
            }
        }
        world.finish().await?;
        run.note(format_args!("{times}"));
        Ok(world.verdict())
    })
}

async fn live(world: &mut World, step: Step) -> Result<()> {
    match step {
        Step::Submit => world.submit().await,
        Step::Again => world.submit_again().await,
        Step::Extend => world.extend().await,
        Step::Withdraw => world.withdraw().await,
        Step::Stop => world.stop().await,
        Step::Doubt => world.doubt().await?,
        Step::Key => world.submit_with_key().await,
        Step::KeyAgain => world.submit_with_key_again().await,
        Step::Replace => world.replace().await,
        Step::Purge => world.purge().await,
        Step::Replay => world.replay().await,
        Step::Idle => world.idle().await,
        Step::SetClock => world.set_clock(),
        Step::Glitch => world.glitch().await?,
        Step::RestartAhead => world.restart_ahead().await?,
        Step::Forget => world.forget().await?,
        Step::Reopen => world.reopen().await?,
        Step::Kill => world.kill(false).await?,
        Step::PowerCut => world.kill(true).await?,
        Step::FailedSync => world.failed_sync().await?,
        Step::NoDescriptor => world.no_descriptor().await?,
        Step::FullDisk => world.full_disk().await?,
        Step::FlippedBit => world.flipped_bit().await?,
        Step::FlipAny => world.flip_any().await?,
    }
    Ok(())
}

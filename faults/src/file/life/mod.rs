//! The whole life of a bus on disk: topics come, grow and go, events are published, handled, parked, released and replayed, retention
//! takes them, journals change, the process is closed and killed, its power is cut, its disk is full or fails, a bit flips,
//! and descriptors run out; in random order, with sizes so small that everything happens all the time.
//!
//! After every opening a model says what must be there: every acknowledged event at its place, nothing settled
//! that was not handled, no topic that was deleted. Handlers run in order per key, those of plain topics once.
//!
//! Power cuts need root, loop devices, ext4 and Python. Where they are not to be had the process is killed instead,
//! and the verdict says that no power was cut.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`child`] | the one that lives |
//! | `words` | what it is told, and what it says |
//! | `model` | what must hold |
//! | `steps` | what can happen |

pub mod child;
mod model;
mod steps;
mod words;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::RngExt;

use self::model::Model;
use self::steps::{Ending, Steps};
use self::words::{Wish, Word};
use super::mount::{Cut, Disk, Namespace};
use crate::clock::WallClock;
use crate::frame::Run;
use crate::life::{Life, program};
use crate::lives::{Times, draw};
use crate::verdict::Verdict;

const OPEN_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_mins(2);
/// The disk of it, in MiB.
const DISK: u64 = 1536;

/// Lets it live.
///
/// # Errors
///
/// If processes or file systems cannot be handled as planned.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let namespace = Namespace::new();
    let disk = namespace
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error:#}"))
        .and_then(|namespace| {
            let disk = Disk::new(namespace, folder.path(), DISK)?;
            disk.mount()?;
            Ok(disk)
        });
    if let Err(error) = &disk {
        run.note(format_args!("no power can be cut here: {error:#}"));
    }
    let clock = WallClock::new(folder.path());
    if let Err(error) = &clock {
        run.note(format_args!("no clock can be set here: {error:#}"));
    }
    let home = disk.as_ref().map_or(folder.path(), Disk::path).to_owned();
    let mut world = World {
        namespace: namespace.as_ref().ok().filter(|_| disk.is_ok()),
        disk: disk.as_ref().ok(),
        clock: clock.ok(),
        home,
        model: Model::default(),
        times: Times::default(),
        counts: Counts::default(),
        lives: 0,
        themes: 0,
        is_at_risk: false,
    };
    let until = Instant::now() + run.lifetime();
    while Instant::now() < until && world.model.violations.is_empty() {
        world.live(run)?;
    }
    if world.model.violations.is_empty() {
        world.drain(run)?;
    }
    run.note(format_args!("{}", world.times));
    Ok(world.verdict())
}

#[derive(Default)]
struct Counts {
    reopens: u64,
    kills: u64,
    cuts: u64,
    flips: u64,
    noticed: u64,
    starved: u64,
    filled: u64,
    clocks: u64,
    steps: u64,
}

struct World<'a> {
    namespace: Option<&'a Namespace>,
    disk: Option<&'a Disk<'a>>,
    clock: Option<WallClock>,
    /// Where the directory of the bus is.
    home: PathBuf,
    model: Model,
    times: Times,
    counts: Counts,
    lives: u64,
    /// How many lives had a theme to choose; those of copies have none.
    themes: u64,
    /// Whether this life has come to where only a power cut shows what was kept.
    is_at_risk: bool,
}

/// A life under way.
struct Living {
    life: Life,
    /// The number of the last wish.
    told: u64,
}

/// What a life has beside all that chance brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    None,
    /// Nothing but positions for long, an event, and a power cut.
    Positions,
    /// A bit flips after it is closed.
    Flip,
    /// Plain messages are handled when the power is cut.
    Plain,
}

impl Theme {
    fn of(life: u64) -> Self {
        match life % 8 {
            2 | 6 => Self::Flip,
            3 => Self::Positions,
            5 | 7 => Self::Plain,
            _ => Self::None,
        }
    }
}

/// What came of a wish.
enum Answer {
    Done,
    Failed(String),
    /// It ended before it answered.
    Ended,
}

impl World<'_> {
    fn directory(&self) -> PathBuf {
        self.home.join("bus")
    }

    /// Starts a life in a directory. `None` if it is refused, and why.
    fn begin(&mut self, directory: &Path) -> Result<Result<Living, String>> {
        let began = Instant::now();
        let mut command = match self.namespace {
            Some(namespace) => namespace.command(program()?),
            None => Command::new(program()?),
        };
        command.arg(child::ARGUMENT).arg(directory);
        if let Some(clock) = &self.clock {
            clock.give_to(&mut command);
        }
        self.lives += 1;
        self.counts.reopens += 1;
        let mut life = Life::begin(&mut command, self.lives)?;
        let Some(said) = life.next_line(OPEN_LIMIT) else {
            bail!("it neither opened nor said why not");
        };
        self.times.add(steps::Kind::Begin, began.elapsed());
        Ok(match serde_json::from_str(&said)? {
            Word::Refused(reason) => Err(reason),
            _ => Ok(Living { life, told: 0 }),
        })
    }

    /// Tells it something, and does not wait.
    fn tell(&mut self, living: &mut Living, wish: &Wish) -> Result<u64> {
        match wish {
            Wish::Declare(name, nature) => self.model.declare(name, *nature),
            Wish::Publish { topic, items, .. } => self.model.submit(topic, items),
            Wish::Delete(name) | Wish::HalfDelete(name) => {
                if let Some(topic) = self.model.topics.get_mut(name) {
                    topic.being = model::Being::Unknown;
                }
            }
            _ => {}
        }
        living.told += 1;
        // One that has died meanwhile hears nothing.
        let _ = living.life.tell(&serde_json::to_string(wish)?);
        Ok(living.told)
    }

    /// Waits until a wish is answered.
    fn answer(&mut self, living: &mut Living, wish: u64) -> Result<Answer> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while Instant::now() < deadline {
            let Some(line) = living.life.next_line(Duration::from_secs(5)) else {
                if living.life.end(Duration::ZERO).is_ok() {
                    return Ok(Answer::Ended);
                }
                continue;
            };
            let word: Word = serde_json::from_str(&line).with_context(|| line.clone())?;
            match word {
                Word::Done(number) if number == wish => return Ok(Answer::Done),
                Word::Failed(number, reason) if number == wish => {
                    return Ok(Answer::Failed(reason));
                }
                Word::Found(number, found) if number == wish => {
                    self.model.verify(&found);
                    return Ok(Answer::Done);
                }
                Word::Refused(reason) => {
                    self.model
                        .broken(format!("it does not open again: {reason}"));
                    return Ok(Answer::Ended);
                }
                word => self.model.hear(&word, None),
            }
        }
        bail!("wish {wish} was not answered within {ANSWER_LIMIT:?}")
    }

    /// Waits until all of these are answered, in whatever way.
    fn await_all(&mut self, living: &mut Living, mut wishes: Vec<u64>) -> Result<()> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while !wishes.is_empty() && Instant::now() < deadline {
            let Some(line) = living.life.next_line(Duration::from_secs(1)) else {
                continue;
            };
            let word: Word = serde_json::from_str(&line).with_context(|| line.clone())?;
            if let Word::Done(number) | Word::Failed(number, _) = word {
                wishes.retain(|wish| *wish != number);
            }
            self.model.hear(&word, None);
        }
        if !wishes.is_empty() {
            self.model.broken(format!(
                "{wishes:?} were not answered within {ANSWER_LIMIT:?}"
            ));
        }
        Ok(())
    }

    /// Has something done that must go well.
    fn must(&mut self, living: &mut Living, wish: &Wish) -> Result<()> {
        let began = Instant::now();
        let number = self.tell(living, wish)?;
        let answer = self.answer(living, number)?;
        self.times.add(steps::Kind::of(wish), began.elapsed());
        match answer {
            Answer::Done => match wish {
                Wish::Declare(name, _) => {
                    if let Some(topic) = self.model.topics.get_mut(name) {
                        topic.being = model::Being::There;
                    }
                }
                Wish::Delete(name) => self.model.gone(name),
                _ => {}
            },
            Answer::Failed(reason) => {
                let wish = steps::brief(wish);
                self.model.broken(format!("{wish} failed: {reason}"));
            }
            Answer::Ended => self
                .model
                .broken(format!("it died of {}", steps::brief(wish))),
        }
        Ok(())
    }

    /// One life: a check, some steps, a burst, and an end.
    fn live(&mut self, run: &mut Run) -> Result<()> {
        let directory = self.directory();
        let mut living = match self.begin(&directory)? {
            Ok(living) => living,
            Err(reason) => {
                self.model.broken(format!("it does not open: {reason}"));
                return Ok(());
            }
        };
        self.must(&mut living, &Wish::Check)?;
        // Chance alone would leave some of what is rare to long runs.
        self.themes += 1;
        let theme = Theme::of(self.themes);
        if theme == Theme::Positions {
            self.positions(run, &mut living)?;
        }
        if theme == Theme::Plain {
            let wish = Steps(&mut self.model).declare_plain(run.dice());
            self.must(&mut living, &wish)?;
        }
        let steps = if self.is_at_risk {
            0
        } else {
            run.dice().random_range(1..9)
        };
        for _ in 0..steps {
            if !self.model.violations.is_empty() {
                return Ok(());
            }
            self.step(run, &mut living)?;
            if self.is_at_risk {
                break;
            }
            // Whatever was done, closing and opening change nothing.
            if self.model.violations.is_empty() && run.dice().random_bool(0.7) {
                self.counts.reopens += 1;
                self.must(&mut living, &Wish::Reopen)?;
                self.must(&mut living, &Wish::Check)?;
            }
        }
        if !self.model.violations.is_empty() {
            return Ok(());
        }
        let mut ending = *draw(run.dice(), steps::ENDINGS);
        if std::mem::take(&mut self.is_at_risk) || theme == Theme::Plain {
            ending = Ending::Cut;
        }
        if theme == Theme::Flip {
            ending = Ending::Close;
        }
        run.note(format_args!(
            "life {}: {steps} steps, then {ending:?}",
            self.lives
        ));
        match ending {
            Ending::Close => {
                self.must(&mut living, &Wish::Close)?;
                living.life.end(ANSWER_LIMIT)?;
                if theme == Theme::Flip || run.dice().random_bool(0.4) {
                    self.flip(run)?;
                }
            }
            Ending::Kill => self.end_badly(run, living, theme, false)?,
            Ending::Cut => self.end_badly(run, living, theme, true)?,
        }
        Ok(())
    }

    /// Asks for several things at once, and breaks it in the middle of them.
    fn end_badly(
        &mut self,
        run: &mut Run,
        mut living: Living,
        theme: Theme,
        by_power: bool,
    ) -> Result<()> {
        let began = Instant::now();
        let plain = Steps(&mut self.model).plain(run.dice());
        let burst = match plain.filter(|_| theme == Theme::Plain) {
            // Nothing but positions is written while these are handled.
            Some([publish, handle]) => {
                self.must(&mut living, &publish)?;
                vec![handle]
            }
            None => Steps(&mut self.model).burst(run.dice()),
        };
        for wish in burst {
            self.tell(&mut living, &wish)?;
        }
        let longest = match theme {
            Theme::Plain => 300,
            _ => *draw(run.dice(), &[(1, 3), (3, 40), (1, 400)]),
        };
        std::thread::sleep(Duration::from_millis(run.dice().random_range(0..longest)));
        let cut = match self.disk.filter(|_| by_power) {
            Some(disk) => {
                let cut = disk.cut_power()?;
                self.counts.cuts += 1;
                // A disk that fails: nothing may be acknowledged any more.
                std::thread::sleep(Duration::from_millis(run.dice().random_range(0..100)));
                Some(cut)
            }
            None => None,
        };
        self.counts.kills += 1;
        living.life.stop()?;
        self.hear_out(&mut living, cut);
        living.life.finish()?;
        self.hear_out(&mut living, cut);
        drop(living);
        if let Some(disk) = self.disk.filter(|_| cut.is_some()) {
            disk.unmount()?;
            disk.mount()?;
        }
        self.times.add(steps::Kind::End, began.elapsed());
        Ok(())
    }

    /// All that was still said.
    fn hear_out(&mut self, living: &mut Living, cut: Option<Cut>) {
        while let Some(line) = living.life.next_line(Duration::from_millis(20)) {
            // The last line may be torn.
            if let Ok(word) = serde_json::from_str(&line) {
                self.model.hear(&word, cut);
            }
        }
    }

    /// A bit of a closed store flips: that is told, or it makes no difference; and when it flips back, all is there.
    fn flip(&mut self, run: &mut Run) -> Result<()> {
        let began = Instant::now();
        let copy = self.home.join("copy");
        let script = self.sh(&[
            OsStr::new(steps::COPY),
            self.directory().as_os_str(),
            copy.as_os_str(),
        ])?;
        let files: Vec<_> = script.lines().map(str::to_owned).collect();
        let seed: u64 = run.dice().random();
        let early = run.dice().random_bool(0.5);
        let arguments = [seed.to_string(), u8::from(early).to_string()];
        let mut flip = vec![OsStr::new("-c"), OsStr::new(steps::FLIP), copy.as_os_str()];
        flip.extend(arguments.iter().map(OsStr::new));
        if files.is_empty() {
            return Ok(());
        }
        let flipped = self.python(&flip)?;
        run.note(format_args!("flip {flipped}"));
        self.counts.flips += 1;
        let noticed = match self.begin(&copy)? {
            Err(reason) => {
                run.note(format_args!("refused: {reason}"));
                true
            }
            Ok(mut living) => {
                let number = self.tell(&mut living, &Wish::Check)?;
                match self.answer(&mut living, number)? {
                    Answer::Done => false,
                    Answer::Failed(reason) => {
                        run.note(format_args!("opened, and not read: {reason}"));
                        true
                    }
                    Answer::Ended => true,
                }
            }
        };
        if !self.model.violations.is_empty() {
            run.note("opened with the flipped bit, and something is missing");
        }
        self.counts.noticed += u64::from(noticed);
        if noticed && self.model.violations.is_empty() {
            // Nothing that could be salvaged may be gone: put right, it is as it was.
            self.python(&flip)?;
            match self.begin(&copy)? {
                Err(reason) => self.model.broken(format!(
                    "after a bit flipped and back ({flipped}): {reason}"
                )),
                Ok(mut living) => self.must(&mut living, &Wish::Check)?,
            }
        }
        self.sh(&[OsStr::new("rm -rf \"$0\""), copy.as_os_str()])?;
        self.times.add(steps::Kind::Flip, began.elapsed());
        Ok(())
    }

    fn sh(&self, script: &[&OsStr]) -> Result<String> {
        self.command("sh", &[&[OsStr::new("-c")], script].concat())
    }

    fn python(&self, arguments: &[&OsStr]) -> Result<String> {
        self.command("python3", arguments)
    }

    fn command(&self, program: &str, arguments: &[&OsStr]) -> Result<String> {
        let mut command = match self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        let output = crate::shell::run(command.args(arguments), ANSWER_LIMIT)?;
        anyhow::ensure!(output.status.success(), "{program}: {}", output.status);
        Ok(output.text.trim().to_owned())
    }

    /// Handles all that is left, in peace.
    fn drain(&mut self, run: &mut Run) -> Result<()> {
        let directory = self.directory();
        let mut living = match self.begin(&directory)? {
            Ok(living) => living,
            Err(reason) => {
                self.model
                    .broken(format!("it does not open in the end: {reason}"));
                return Ok(());
            }
        };
        self.must(&mut living, &Wish::Check)?;
        for round in 0..3 {
            for wish in Steps(&mut self.model).drain() {
                self.must(&mut living, &wish)?;
            }
            run.note(format_args!("drained, round {round}"));
        }
        self.must(&mut living, &Wish::Check)?;
        self.model.verify_drained();
        self.must(&mut living, &Wish::Close)
    }

    fn verdict(self) -> Verdict {
        let Self { model, counts, .. } = self;
        let mut verdict = Verdict::new()
            .count("steps", counts.steps)
            .count("acknowledged", model.acked)
            .count("handled", model.handled)
            .count("reopened", counts.reopens)
            .count("killed", counts.kills)
            .count("power cuts", counts.cuts)
            .count("full disks", counts.filled)
            .count("clocks set", counts.clocks)
            .count("out of descriptors", counts.starved)
            .count("flipped bits", counts.flips)
            .count("flipped bits that were noticed", counts.noticed)
            .must_be("broken promises", model.violations.len() as u64, 0);
        for violation in model.violations.iter().take(20) {
            verdict = verdict.detail(violation);
        }
        verdict
    }
}

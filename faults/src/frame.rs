//! A run with its seed, its dice and its journal.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// One fault run under way.
#[derive(Debug)]
pub struct Run {
    seed: u64,
    full: bool,
    only: Option<String>,
    time: Option<Duration>,
    dice: StdRng,
    journal: Journal,
}

impl Run {
    /// A run whose plan follows from `seed`, with its journal below `folder`.
    ///
    /// # Errors
    ///
    /// If the journal cannot be written.
    pub fn new(name: &str, seed: u64, full: bool, folder: &Path) -> Result<Self> {
        Ok(Self {
            seed,
            full,
            only: None,
            time: None,
            dice: StdRng::seed_from_u64(seed),
            journal: Journal::create(&folder.join(format!("{name}-{seed}.log")))?,
        })
    }

    /// Whether the long version was asked for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Restricts a run that breaks several things to one of them.
    pub fn restrict(&mut self, only: Option<String>) {
        self.only = only;
    }

    /// The one thing that is broken, if not all are.
    #[must_use]
    pub fn only(&self) -> Option<&str> {
        self.only.as_deref()
    }

    /// Says how long something shall live.
    pub fn limit(&mut self, time: Option<Duration>) {
        self.time = time;
    }

    /// How long something lives that lives for a while: as long as was said, else half a minute, or an hour in the long
    /// version.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        let unless_said = if self.full { 3600 } else { 30 };
        self.time.unwrap_or(Duration::from_secs(unless_said))
    }

    /// The time that was said, if one was.
    #[must_use]
    pub fn time(&self) -> Option<Duration> {
        self.time
    }

    /// What the plan follows from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// From now on the dice follow from the seed and a name: whatever was drawn before makes no difference.
    pub fn throw_anew(&mut self, name: &str) {
        let name = name.bytes().fold(0, |sum: u64, byte| {
            sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
        });
        self.dice = StdRng::seed_from_u64(self.seed ^ name);
    }

    /// Where chance comes from. Two runs with one seed that draw alike get alike, as long as the
    /// `rand` in `Cargo.lock` is the same.
    pub fn dice(&mut self) -> &mut StdRng {
        &mut self.dice
    }

    /// Says what is going to happen, before it does.
    pub fn announce(&mut self, plan: &[impl Display]) {
        let seed = self.seed;
        self.note(format_args!("plan of seed {seed}:"));
        for (number, step) in plan.iter().enumerate() {
            self.note(format_args!("  {}. {step}", number + 1));
        }
    }

    /// Writes into the journal what has just happened.
    pub fn note(&mut self, what: impl Display) {
        self.journal.note(&what);
    }

    /// Where the journal is.
    #[must_use]
    pub fn journal(&self) -> &Path {
        &self.journal.path
    }
}

/// What happened and when: for people on the standard error, and for later in a file.
#[derive(Debug)]
struct Journal {
    started: Instant,
    path: PathBuf,
    file: File,
}

impl Journal {
    fn create(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            started: Instant::now(),
            path: path.to_owned(),
            file,
        })
    }

    fn note(&mut self, what: &dyn Display) {
        let line = format!("{:>8.3} {what}\n", self.started.elapsed().as_secs_f64());
        eprint!("{line}");
        // A full disk must not decide the verdict, and the line has been shown.
        let _ = self.file.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rand::RngExt;

    use super::Run;

    #[test]
    fn the_same_seed_throws_the_same_dice() {
        let folder = tempfile::tempdir().unwrap();
        let throw = |seed| {
            let mut run = Run::new("test", seed, false, folder.path()).unwrap();
            (0..8)
                .map(|_| run.dice().random_range(0..100))
                .collect::<Vec<u32>>()
        };
        assert_eq!(throw(7), throw(7));
        assert_ne!(throw(7), throw(8));
    }

    #[test]
    fn the_journal_has_the_seed_and_the_plan() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Run::new("test", 7, false, folder.path()).unwrap();
        run.announce(&["kill nats", "kill redis"]);
        let journal = fs::read_to_string(run.journal()).unwrap();
        assert!(journal.contains("plan of seed 7:"), "{journal}");
        assert!(journal.contains("  2. kill redis"), "{journal}");
    }
}

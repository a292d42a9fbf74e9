//! One DNS lookup of a name at a time, shared by all calls, and its result for a short while.
//!
//! A name whose servers do not answer holds one lookup, however many messages go there. What was found is
//! good for a few seconds. When it is older it is looked up again; if that takes long, what was found before
//! is taken, so that a name that was known does not wait behind names that hang. Failures are kept for a
//! moment only, which is shorter than the first wait between attempts.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::resolve::Resolve;

/// For how long addresses are good.
const FRESH: Duration = Duration::from_secs(5);
/// For how long they are better than none.
const USABLE: Duration = Duration::from_mins(5);
/// How long a lookup may take before addresses that are not fresh are taken.
const STALE_AFTER_TIMEOUT: Duration = Duration::from_millis(50);
/// For how long a failure counts.
const FAILED: Duration = Duration::from_millis(500);
/// Above this many names, those that are not usable are forgotten.
const NAMES: usize = 4_096;
/// How many names are remembered at most.
const MOST_NAMES: usize = 65_536;

#[derive(Clone)]
pub(super) struct Lookups {
    resolver: Arc<dyn Resolve>,
    names: Arc<Mutex<Names>>,
}

#[derive(Default)]
struct Names {
    by_name: HashMap<String, Name>,
    /// With how many names they are looked through.
    sweep_at: usize,
}

#[derive(Default)]
struct Name {
    found: Option<(Instant, Vec<IpAddr>)>,
    failed: Option<(Instant, Failed)>,
    running: Option<watch::Receiver<Option<Answer>>>,
}

type Answer = Result<Vec<IpAddr>, Failed>;

/// An error that many can be told of.
#[derive(Clone, Debug)]
struct Failed {
    kind: io::ErrorKind,
    text: Arc<str>,
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> Self {
        Self::new(failed.kind, failed.text.to_string())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self {
            kind: error.kind(),
            text: error.to_string().into(),
        }
    }
}

impl Lookups {
    pub(super) fn new(resolver: Arc<dyn Resolve>) -> Self {
        let names = Names {
            sweep_at: NAMES,
            ..Names::default()
        };
        Self {
            resolver,
            names: Arc::new(Mutex::new(names)),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock()
    }

    /// The addresses of a name.
    pub(super) async fn find(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let (mut running, found) = {
            let now = Instant::now();
            let mut names = self.names();
            names.sweep(now);
            let name = names.by_name.entry(host.to_owned()).or_default();
            if let Some(answer) = name.answer(now) {
                return Ok(answer?);
            }
            let running = match &name.running {
                Some(running) => running.clone(),
                None => self.start(host, name),
            };
            (running, name.usable(now))
        };
        let answered = running.wait_for(Option::is_some);
        let answer = match found {
            None => answered.await.map(|answer| answer.clone()),
            Some(found) => match timeout(STALE_AFTER_TIMEOUT, answered).await {
                Ok(answer) => answer.map(|answer| answer.clone()),
                Err(_) => return Ok(found),
            },
        };
        match answer {
            Ok(Some(answer)) => Ok(answer?),
            _ => Err(io::Error::other("the lookup broke off")),
        }
    }

    /// Begins a lookup. It goes on when no call waits for it any more: it holds its name until it ends.
    fn start(&self, host: &str, name: &mut Name) -> watch::Receiver<Option<Answer>> {
        let (sender, running) = watch::channel(None);
        name.running = Some(running.clone());
        let (this, host) = (self.clone(), host.to_owned());
        tokio::spawn(async move {
            let answer = this.resolver.resolve(&host).await.map_err(Failed::from);
            let now = Instant::now();
            let mut names = this.names();
            let name = names.by_name.entry(host).or_default();
            name.running = None;
            match &answer {
                Ok(found) => {
                    name.found = Some((now, found.clone()));
                    name.failed = None;
                }
                // A name that is gone is gone, whatever was found before.
                Err(failed) => {
                    name.found = None;
                    name.failed = Some((now, failed.clone()));
                }
            }
            drop(names);
            sender.send_replace(Some(answer));
        });
        running
    }
}

impl Name {
    /// What is known well enough.
    fn answer(&self, now: Instant) -> Option<Answer> {
        if let Some((at, found)) = &self.found
            && now.duration_since(*at) < FRESH
        {
            return Some(Ok(found.clone()));
        }
        let (at, failed) = self.failed.as_ref()?;
        (now.duration_since(*at) < FAILED).then(|| Err(failed.clone()))
    }

    /// What is better than nothing.
    fn usable(&self, now: Instant) -> Option<Vec<IpAddr>> {
        let (at, found) = self.found.as_ref()?;
        (now.duration_since(*at) < USABLE).then(|| found.clone())
    }
}

impl Names {
    /// Forgets names that are of no use. With twice as many as are left it is done again, so that each name
    /// is looked at a few times at most.
    fn sweep(&mut self, now: Instant) {
        if self.by_name.len() < self.sweep_at {
            return;
        }
        let is_full = self.by_name.len() >= MOST_NAMES;
        self.by_name
            .retain(|_, name| name.running.is_some() || !is_full && name.usable(now).is_some());
        self.sweep_at = (2 * self.by_name.len()).max(NAMES);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::resolve::Resolving;
    use super::*;

    /// Names that begin with `slow` hang for 25 s and fail; `gone` fails at once. Only so many can be
    /// looked up at the same time.
    struct Double {
        turns: Arc<tokio::sync::Semaphore>,
        asked: Arc<AtomicUsize>,
    }

    impl Resolve for Double {
        fn resolve(&self, host: &str) -> Resolving {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let (turns, host) = (self.turns.clone(), host.to_owned());
            Box::pin(async move {
                let _turn = turns.acquire_owned().await.map_err(io::Error::other)?;
                if host.starts_with("slow") {
                    tokio::time::sleep(Duration::from_secs(25)).await;
                }
                if host.starts_with("fast") {
                    return Ok(vec![IpAddr::from([127, 0, 0, 1])]);
                }
                Err(io::Error::new(io::ErrorKind::NotFound, "no such name"))
            })
        }
    }

    fn lookups(at_once: usize) -> (Lookups, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let double = Double {
            turns: Arc::new(tokio::sync::Semaphore::new(at_once)),
            asked: asked.clone(),
        };
        (Lookups::new(Arc::new(double)), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_for_all_who_ask_and_what_is_known_is_used() {
        let (lookups, asked) = lookups(8);
        let all = (0..100).map(|_| {
            let lookups = lookups.clone();
            tokio::spawn(async move { lookups.find("fast").await })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.expect("no panic").expect("found");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(FRESH).await;
        lookups.find("fast").await.expect("found");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_hang_hold_one_lookup_each_and_delay_no_other_name() {
        for names in [3, 100] {
            let (lookups, asked) = lookups(names + 1);
            for number in 0..names {
                for _ in 0..100 {
                    let lookups = lookups.clone();
                    let name = format!("slow{number}");
                    // Its attempt gives up after ten seconds, its lookup does not.
                    tokio::spawn(async move {
                        timeout(Duration::from_secs(10), lookups.find(&name)).await
                    });
                }
            }
            tokio::task::yield_now().await;
            for _ in 0..60 {
                let started = Instant::now();
                lookups.find("fast").await.expect("found");
                assert!(started.elapsed() < Duration::from_millis(100));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let most = names + 3;
            assert!(asked.load(Ordering::SeqCst) <= most, "{asked:?} of {most}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_name_is_used_when_all_lookups_hang() {
        let (lookups, _) = lookups(2);
        lookups.find("fast").await.expect("found");
        for number in 0..50 {
            let lookups = lookups.clone();
            tokio::spawn(async move { lookups.find(&format!("slow{number}")).await });
        }
        tokio::time::sleep(FRESH * 2).await;
        for _ in 0..20 {
            let started = Instant::now();
            lookups.find("fast").await.expect("known");
            assert!(started.elapsed() <= STALE_AFTER_TIMEOUT);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_for_a_moment_only() {
        let (lookups, asked) = lookups(2);
        for _ in 0..10 {
            let error = lookups.find("gone").await.expect_err("no such name");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(FAILED).await;
        lookups.find("gone").await.expect_err("no such name");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_are_of_no_use_are_forgotten() {
        let (lookups, _) = lookups(8);
        for number in 0..3 * NAMES {
            let _ = lookups.find(&format!("gone{number}")).await;
        }
        assert!(lookups.names().by_name.len() <= NAMES + 1);
    }
}

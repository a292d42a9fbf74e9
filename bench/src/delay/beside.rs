//! How late callbacks are beside what fails in other ways: names that do not resolve, hosts that refuse, callers in a
//! hurry, a bus that takes nothing, a row that cannot be read. In this process, since these have to be made up.

mod damaged;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use laneway_delay::callback::guard::{Resolve, Resolving};
use laneway_delay::callback::{Allow, Client, Guard, Limits};
use laneway_delay::{
    BoxFuture, Delays, Firing, Health, Options, Publish, Sinks, Submission, Target, Undelivered,
    When,
};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};

use super::arrivals::Arrivals;
use super::rig::{after, number_of, payload};
use super::{Steady, TOPIC_OF_CALLBACKS};
use crate::bus::place;
use crate::delay::http::serve_and_note;
use crate::frame::Sample;

/// How long to wait for the last one.
const PATIENCE: Duration = Duration::from_mins(1);

/// From when they are submitted until the first is due.
const LEAD: Duration = Duration::from_secs(2);

/// Callbacks without a number are answered after this long.
const DAWDLES: Duration = Duration::from_millis(20);

/// How late callbacks to a name are that resolves at once while so many others do not.
pub(super) async fn unresolved_names(steady: Steady, names: u64) -> Result<Sample> {
    let others = callbacks(names, 100, |name| format!("http://slow{name}.test/"));
    beside(steady, |_| others).await
}

/// How late callbacks are while 50,000 go to so many hosts that refuse every connection.
pub(super) async fn refusing_hosts(steady: Steady, hosts: u64) -> Result<Sample> {
    // Bound, and nothing listens.
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let port = socket.local_addr()?.port();
    let others = callbacks(hosts, 50_000 / hosts, |host| {
        format!("http://refuse{host}.test:{port}/")
    });
    beside(steady, |_| others).await
}

/// How late callbacks are while as many others to the same host, which is slower for them, are given up after a
/// millisecond.
pub(super) async fn short_timeouts(steady: Steady) -> Result<Sample> {
    let hurried = |port: u16| {
        let mut target = Target::callback(url(port));
        if let Target::Callback(callback) = &mut target {
            callback.timeout = Some(Duration::from_millis(1));
        }
        let all = (0..steady.count()).map(|number| {
            let when = When::After(LEAD + steady.after(number));
            Submission::new("hurried", when, target.clone())
        });
        all.collect()
    };
    beside(steady, hurried).await
}

/// How late callbacks are while a bus with so many topics takes messages and never answers.
pub(super) async fn hung_bus(steady: Steady, topics: u64) -> Result<Sample> {
    let others = (0..topics).flat_map(|topic| {
        (0..1000).map(move |_| {
            let target = Target::bus(format!("topic-{topic}"), "key", "Due");
            Submission::new(TOPIC_OF_CALLBACKS, When::After(Duration::ZERO), target)
        })
    });
    beside(steady, |_| others.collect()).await
}

/// How late callbacks are while a row of the store, which is due as well, cannot be read.
pub(super) async fn unreadable_row(steady: Steady) -> Result<Sample> {
    let folder = place::folder()?;
    damaged::store(&folder.path().join("delays")).await?;
    let (sample, health) = beside_in(&folder, steady, |_| Vec::new()).await?;
    ensure!(health.unreadable > 0, "all rows could be read: {health}");
    Ok(sample)
}

/// Callbacks that are due at once, so many to each of so many hosts.
fn callbacks(hosts: u64, each: u64, url: impl Fn(u64) -> String) -> Vec<Submission> {
    let all = (0..hosts).flat_map(|host| (0..each).map(move |_| host));
    all.map(|host| {
        let target = Target::callback(url(host));
        Submission::new(TOPIC_OF_CALLBACKS, When::After(Duration::ZERO), target)
    })
    .collect()
}

/// The receiver whose callbacks are measured.
fn url(port: u16) -> String {
    format!("http://fast.test:{port}/")
}

async fn beside(steady: Steady, others: impl FnOnce(u16) -> Vec<Submission>) -> Result<Sample> {
    let (sample, _) = beside_in(&place::folder()?, steady, others).await?;
    Ok(sample)
}

/// Measures callbacks to a receiver, whose port `others` are told, while those have to be delivered, too.
async fn beside_in(
    folder: &TempDir,
    steady: Steady,
    others: impl FnOnce(u16) -> Vec<Submission>,
) -> Result<(Sample, Health)> {
    let arrivals = Arrivals::of(steady.count());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let noted = arrivals.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let noted = noted.clone();
            tokio::spawn(serve_and_note(stream, move |body| {
                let number = number_of(body);
                noted.note(number);
                number.map_or(DAWDLES, |_| Duration::ZERO)
            }));
        }
    });
    let guard = Guard::new(Allow::loopback());
    let client = Client::with_resolver(guard, Limits::default(), Vec::new(), Names)?;
    let sinks = Sinks {
        callbacks: Some(Arc::new(client)),
        bus: Some(Arc::new(Hung)),
    };
    let delays = Delays::open(folder.path().join("delays"), sinks, Options::default()).await?;
    for some in others(port).chunks(1000) {
        submit(&delays, some.to_vec()).await?;
    }
    let start = after(LEAD);
    let due = |number: u64| start + steady.after(number);
    let url = url(port);
    let all: Vec<_> = (0..steady.count())
        .map(|number| {
            Submission::new(
                TOPIC_OF_CALLBACKS,
                When::At(due(number)),
                Target::callback(url.clone()),
            )
            .payload(payload(number))
        })
        .collect();
    for some in all.chunks(500) {
        submit(&delays, some.to_vec()).await?;
    }
    arrivals.all(PATIENCE).await?;
    let health = delays.report();
    // Those that hang are left behind.
    let _ = delays.close(Duration::from_millis(100)).await;
    let sample = arrivals.late(|number| due(number).as_millis() * 1000)?;
    Ok((sample, health))
}

async fn submit(delays: &Delays, batch: Vec<Submission>) -> Result<()> {
    for answer in delays.submit(batch).await {
        answer?;
    }
    Ok(())
}

/// Names that hang for 25 s and are not found then, but for those that are this machine.
struct Names;

impl Resolve for Names {
    fn resolve(&self, host: &str) -> Resolving {
        let is_here = host.starts_with("fast") || host.starts_with("refuse");
        Box::pin(async move {
            if is_here {
                return Ok(vec![IpAddr::from([127, 0, 0, 1])]);
            }
            tokio::time::sleep(Duration::from_secs(25)).await;
            Err(io::Error::new(io::ErrorKind::NotFound, "no such name"))
        })
    }
}

/// A bus that takes messages and never answers.
struct Hung;

impl Publish for Hung {
    fn publish(&self, _: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(std::future::pending())
    }
}

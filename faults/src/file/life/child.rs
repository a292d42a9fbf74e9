//! The one that lives: a bus on disk where everything is tiny, which does as it is told and says what it sees.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::FutureExt;
use laneway::breaking::{self, FileLimits};
use laneway::retry::RetryPolicy;
use laneway::topic::{Growth, Kind, Retention, Storage, Strategy, Topic};
use laneway::{BrokerError, Bus, Envelope, Error, Event, Exhausted, Failure, Message, Outgoing};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::words::{Found, FoundTopic, Item, Keep, Nature, Wish, Word};
use crate::life::now;

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "file-life";

const GROUP: &str = "default";
/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// A child that nobody ends ends itself.
const LIFETIME: Duration = Duration::from_mins(20);

/// Lives.
///
/// # Errors
///
/// If it is told something that it does not understand.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    let directory = arguments.into_iter().nth(1).context("no directory")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let lived = runtime.block_on(async {
        let living = live(PathBuf::from(directory));
        let lived = tokio::time::timeout(LIFETIME, living).await;
        lived.context("nobody ended this life")?
    });
    runtime.shutdown_background();
    lived.map(|()| ExitCode::SUCCESS)
}

async fn live(directory: PathBuf) -> Result<()> {
    let (sender, mut wishes) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let Some(mut bus) = open(&directory).await else {
        return Ok(());
    };
    let mut number = 0;
    while let Some(line) = wishes.recv().await {
        number += 1;
        match serde_json::from_str(&line)? {
            Wish::Close => {
                let closed = bus.close(DEADLINE).await;
                say(&outcome(number, closed.map(|_| ())));
                return Ok(());
            }
            Wish::Reopen => {
                if let Err(error) = bus.close(DEADLINE).await {
                    say(&Word::Failed(number, error.to_string()));
                    return Ok(());
                }
                match open(&directory).await {
                    Some(opened) => bus = opened,
                    None => return Ok(()),
                }
                say(&Word::Done(number));
            }
            wish => {
                let bus = bus.clone();
                tokio::spawn(async move {
                    let done = match wish {
                        Wish::Check => check(&bus).await.map(|found| Word::Found(number, found)),
                        wish => act(&bus, wish).await.map(|()| Word::Done(number)),
                    };
                    let failed = |error: anyhow::Error| Word::Failed(number, format!("{error:#}"));
                    say(&done.unwrap_or_else(failed));
                });
            }
        }
    }
    Ok(())
}

async fn open(directory: &std::path::Path) -> Option<Bus> {
    let mut limits = FileLimits::tiny();
    // As it is outside of tests: what is lost with the power must show.
    limits.sync_every = FileLimits::default().sync_every;
    // Two journals full of positions take long enough as it is.
    limits.catalog_memtable = FileLimits::default().catalog_memtable;
    let builder = Bus::builder().file_limits(limits).deadline(DEADLINE);
    match builder.open(&format!("file:{}", directory.display())).await {
        Ok(bus) => {
            say(&Word::Opened);
            Some(bus)
        }
        Err(error) => {
            say(&Word::Refused(error.to_string()));
            None
        }
    }
}

fn say(word: &Word) {
    let line = serde_json::to_string(word).unwrap_or_default();
    let mut output = std::io::stdout().lock();
    // Whoever does not listen any more does not want to know.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn outcome(number: u64, result: Result<(), Error>) -> Word {
    match result {
        Ok(()) => Word::Done(number),
        Err(error) => Word::Failed(number, error.to_string()),
    }
}

async fn act(bus: &Bus, wish: Wish) -> Result<()> {
    match wish {
        Wish::Declare(name, nature) => {
            let declared = declaration(&name, nature)?;
            let strategy = Strategy::CreateOrUpdate;
            bus.declare_with(&declared, strategy, Growth::Forced)
                .await?;
        }
        Wish::Publish {
            topic,
            is_plain,
            items,
            is_batch,
        } => publish(bus, &topic, is_plain, items, is_batch).await?,
        Wish::Handle {
            topic,
            nature,
            one_fails_in,
            millis,
        } => {
            handle(
                bus,
                topic,
                nature,
                one_fails_in,
                Duration::from_millis(millis),
            )
            .await?;
        }
        Wish::Letters { topic, drops } => letters(bus, &topic, drops).await?,
        Wish::Positions { topic, bytes } => {
            breaking::write_positions(bus, &topic, bytes).await?;
        }
        Wish::Delete(topic) => match bus.delete(&topic).await {
            Ok(()) | Err(Error::Broker(BrokerError::UnknownTopic(_))) => {}
            Err(error) => return Err(error.into()),
        },
        Wish::HalfDelete(topic) => {
            let _ = bus.delete(&topic).now_or_never();
        }
        Wish::Starve(millis) => starve(Duration::from_millis(millis)).await?,
        Wish::Idle(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Wish::Check | Wish::Reopen | Wish::Close => {}
    }
    Ok(())
}

fn declaration(name: &str, nature: Nature) -> Result<Topic> {
    let topic = if nature.is_plain {
        Topic::plain(name).storage(Storage::File)
    } else {
        Topic::domain(name)
    };
    let forever = Retention::FOREVER;
    let retention = match nature.keep {
        Keep::All => forever,
        Keep::Age(millis) => forever.age(Duration::from_millis(millis)),
        Keep::Bytes(bytes) => forever.bytes(bytes),
        Keep::Count(count) => forever.count(count),
    };
    Ok(topic
        .partitions(nature.partitions)
        .retention(retention)
        .build()?)
}

fn payload(item: &Item) -> serde_json::Value {
    serde_json::json!({ "seq": item.seq, "filling": "x".repeat(item.size) })
}

async fn publish(
    bus: &Bus,
    topic: &str,
    is_plain: bool,
    items: Vec<Item>,
    is_batch: bool,
) -> Result<()> {
    let acked = |item: &Item, receipt: laneway::Receipt| {
        say(&Word::Acked {
            topic: topic.to_owned(),
            seq: item.seq,
            at: (receipt.partition, receipt.offset),
            time: now(),
        });
    };
    let envelope = |item: &Item| Envelope::builder(&*item.key, "Lived").json(&payload(item));
    let plain = |item: &Item| Outgoing::new(payload(item).to_string());
    if is_batch {
        let receipts = if is_plain {
            bus.publish_batch(topic, items.iter().map(plain)).await?
        } else {
            let envelopes = items.iter().map(envelope).collect::<Result<Vec<_>, _>>()?;
            bus.publish_envelope_batch(topic, &envelopes).await?
        };
        for (item, receipt) in items.iter().zip(receipts) {
            acked(item, receipt);
        }
        return Ok(());
    }
    for item in &items {
        let receipt = if is_plain {
            bus.publish(topic, plain(item)).await?
        } else {
            bus.publish_envelope(topic, &envelope(item)?).await?
        };
        acked(item, receipt);
    }
    Ok(())
}

fn seq_of(payload: &serde_json::Value) -> u64 {
    payload["seq"].as_u64().unwrap_or_default()
}

async fn handle(
    bus: &Bus,
    topic: String,
    nature: Nature,
    one_fails_in: u64,
    time: Duration,
) -> Result<()> {
    let name = topic.clone();
    let ran = move |seq, is_done| {
        say(&Word::Ran {
            topic: name.clone(),
            seq,
            is_done,
            time: now(),
        });
    };
    let ran = Arc::new(ran);
    let retry = RetryPolicy::exponential(2, Duration::from_millis(1), Duration::from_millis(2))?;
    let exhausted = if nature.parks {
        Exhausted::ParkKey
    } else {
        Exhausted::DeadLetter
    };
    let subscription = bus.subscription(&topic).group(GROUP);
    let subscription = if nature.is_plain {
        let handler = move |message: Message| {
            let ran = ran.clone();
            async move {
                let payload = serde_json::from_slice(message.payload()).unwrap_or_default();
                ran(seq_of(&payload), true);
                Ok(())
            }
        };
        subscription.message(handler).await?
    } else {
        let handler = move |event: Event| {
            let ran = ran.clone();
            async move {
                let payload: serde_json::Value = event.json()?;
                let mut hasher = DefaultHasher::new();
                event.aggregate_id().to_string().hash(&mut hasher);
                if one_fails_in > 0 && hasher.finish().is_multiple_of(one_fails_in) {
                    return Err(Failure::new("as planned"));
                }
                ran(seq_of(&payload), true);
                Ok(())
            }
        };
        let subscription = subscription.retry(retry).on_exhausted(exhausted);
        subscription.envelope(handler).await?
    };
    let began = Instant::now();
    while began.elapsed() < time {
        let backlog = bus.backlog(&topic, GROUP).await?;
        if backlog.iter().all(|lag| lag.records == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    subscription.close(DEADLINE).await;
    Ok(())
}

async fn letters(bus: &Bus, topic: &str, drops: bool) -> Result<()> {
    let parked = bus.parked(topic).await?;
    for (group, key) in parked.keys().await? {
        parked.release(&group, &key).await?;
    }
    let dead = bus.dead_letters(topic).await?;
    if drops {
        let ids: Vec<_> = dead
            .list(1000)
            .await?
            .iter()
            .map(|letter| letter.id)
            .collect();
        let some: Vec<_> = ids.into_iter().step_by(2).collect();
        dead.discard(&some).await?;
    }
    dead.replay_all().await?;
    Ok(())
}

/// Takes all descriptors for a while.
async fn starve(time: Duration) -> Result<()> {
    let before = getrlimit(Resource::Nofile);
    let used = std::fs::read_dir("/proc/self/fd")?.count() as u64;
    let mut scarce = before;
    scarce.current = Some(used + 4);
    setrlimit(Resource::Nofile, scarce)?;
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    tokio::time::sleep(time).await;
    drop(taken);
    setrlimit(Resource::Nofile, before)?;
    Ok(())
}

async fn check(bus: &Bus) -> Result<Found> {
    let mut found = Found::default();
    for topic in bus.topics().await? {
        let name = topic.name().as_str().to_owned();
        if topic.name().reserved().is_some() {
            continue;
        }
        let (mut events, mut settled) = (Vec::new(), Vec::new());
        for partition in topic.partitions().iter() {
            for delivered in breaking::contents(bus, &name, partition).await? {
                let seq = seq_in(&delivered.record.payload)
                    .with_context(|| format!("{name} {partition}/{}", delivered.offset))?;
                events.push((partition, delivered.offset, seq));
            }
            let position = breaking::position(bus, &name, partition, GROUP).await?;
            if let Some(position) = position {
                let above = position.done_above().iter();
                let above = above.map(|range| (*range.start(), *range.end()));
                settled.push((partition, position.low(), above.collect()));
            }
        }
        let mut aside = Vec::new();
        if topic.kind() == Kind::Domain {
            for letters in [
                bus.dead_letters(&name).await?.list(usize::MAX).await?,
                bus.parked(&name).await?.list(usize::MAX).await?,
            ] {
                aside.extend(letters.iter().map(|letter| letter.origin));
            }
        }
        found.topics.push(FoundTopic {
            name,
            events,
            settled,
            aside,
        });
    }
    Ok(found)
}

/// The number of an event, in its envelope or plain; 0 for what the bus itself wrote.
fn seq_in(payload: &[u8]) -> Result<u64> {
    if payload.is_empty() {
        return Ok(0);
    }
    let value: serde_json::Value = match serde_json::from_slice(payload) {
        Ok(value) => value,
        Err(_) => return Ok(0),
    };
    let inner = value.get("payload").unwrap_or(&value);
    match inner.get("seq").and_then(serde_json::Value::as_u64) {
        Some(seq) => Ok(seq),
        None if inner.get("filling").is_some() => bail!("an event without its number"),
        None => Ok(0),
    }
}

//! The figures of a bus for Prometheus.
//!
//! Counters are read at every scrape. How the broker is and how far groups are behind takes a
//! question to the broker, and a scrape must not wait for that: a task asks every few seconds, for
//! as long as the registry is there, and a scrape shows the latest answers. A bus that is not
//! registered anywhere asks nobody.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use tokio::time::{MissedTickBehavior, interval};

use super::handle::Inner;
use super::state::State;
use super::{Bus, Shared, SubscriptionStats};
use crate::broker::Lag;
use crate::exposition::{Labels, Page};
use crate::lanes::Latency;
use crate::supervise::{self, supervise};
use crate::topic::TopicName;

/// How often the broker is asked: as often as most people scrape.
const ASK_EVERY: Duration = Duration::from_secs(15);

impl Bus {
    /// Adds the figures of this bus and of its lanes to a registry.
    ///
    /// | name | labels | |
    /// |---|---|---|
    /// | `laneway_bus_published_total` | topic | records that were published |
    /// | `laneway_bus_publish_errors_total` | topic | records whose publish failed or took too long |
    /// | `laneway_bus_publish_duration_seconds` | topic | how long the broker took, by call |
    /// | `laneway_bus_handled_total` | topic, group | deliveries that were handled |
    /// | `laneway_bus_failed_total` | topic, group | attempts that failed |
    /// | `laneway_bus_dead_lettered_total` | topic, group | events that went to the dead letters |
    /// | `laneway_bus_parked_total` | topic, group | events that were parked |
    /// | `laneway_bus_deduplicated_total` | topic, group | events that were skipped because their id was known |
    /// | `laneway_bus_subscription_state` | topic, group, state | 1 for the state that it is in, else 0 |
    /// | `laneway_bus_last_commit_age_seconds` | topic, group | how long ago its position last moved |
    /// | `laneway_bus_backlog_records` | topic, group, partition | records that are not settled |
    /// | `laneway_bus_backlog_oldest_age_seconds` | topic, group, partition | how old the oldest of them is |
    /// | `laneway_bus_broker_up` | | whether the broker can do its work |
    /// | `laneway_bus_task_panics_total` | | tasks in the background that panicked and were started again, in this process |
    ///
    /// | `laneway_bus_kafka_waiting_records`, `_bytes` | client | on Kafka: what a client has not sent yet |
    /// | `laneway_bus_kafka_sent_requests_total`, `_bytes_total` | client | what it has sent |
    /// | `laneway_bus_kafka_received_responses_total`, `_bytes_total` | client | what it was answered |
    /// | `laneway_bus_kafka_connected_brokers` | client | brokers that it has a connection to |
    /// | `laneway_bus_kafka_connects_total` | client | how often it connected |
    /// | `laneway_bus_kafka_answer_p99_seconds` | client | how long the slowest broker takes |
    ///
    /// Backlog and broker are asked for every 15 seconds, clients on Kafka tell every 5, the others are
    /// read at every scrape. A
    /// subscription that was closed has no figures any more. All names begin with `laneway_`: the registry needs no
    /// prefix. The figures of the lanes are listed at
    /// [`Engine::metrics`](crate::lanes::Engine::metrics); their topics are called `topic@group`.
    ///
    /// ```
    /// use laneway::Bus;
    /// use prometheus_client::encoding::text::encode;
    /// use prometheus_client::registry::Registry;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = Bus::open("memory:").await?;
    /// let mut registry = Registry::default();
    /// bus.register_metrics(&mut registry);
    ///
    /// bus.publish("news", "hello").await?;
    /// let mut page = String::new();
    /// encode(&mut page, &registry)?;
    /// assert!(page.contains("laneway_bus_published_total{topic=\"news\"} 1"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.register(registry, self.shared.engine.metrics());
    }

    /// As [`register_metrics`](Self::register_metrics), with five series more for every single worker, of which
    /// there are some hundred.
    pub fn register_metrics_with_workers(&self, registry: &mut Registry) {
        self.register(registry, self.shared.engine.metrics().with_workers());
    }

    fn register(&self, registry: &mut Registry, lanes: crate::lanes::Metrics) {
        let asked = Arc::new(Mutex::default());
        let (bus, answers) = (Arc::downgrade(&self.shared), Arc::downgrade(&asked));
        self.shared.runtime.spawn(async move {
            supervise("asking for figures", || {
                keep_asking(bus.clone(), answers.clone())
            })
            .await;
        });
        registry.register_collector(Box::new(BusCollector {
            bus: Arc::downgrade(&self.shared),
            asked,
        }));
        registry.register_collector(Box::new(lanes));
    }
}

/// What only the broker knows.
#[derive(Default)]
struct Answers {
    broker_up: Option<bool>,
    backlog: Vec<(TopicName, Arc<str>, Vec<Lag>)>,
}

async fn keep_asking(bus: Weak<Shared>, asked: Weak<Mutex<Answers>>) {
    let mut turns = interval(ASK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let (Some(shared), Some(asked)) = (bus.upgrade(), asked.upgrade()) else {
            return;
        };
        let bus = Bus { shared };
        if bus.shared.check_open().is_err() {
            // What was true then says nothing now.
            *asked.lock() = Answers::default();
            return;
        }
        let answers = ask(&bus).await;
        *asked.lock() = answers;
    }
}

async fn ask(bus: &Bus) -> Answers {
    let mut answers = Answers {
        broker_up: Some(bus.health().await.broker.is_none()),
        backlog: Vec::new(),
    };
    for subscription in bus.shared.subscriptions() {
        let (topic, group) = (&subscription.flow.topic, &subscription.flow.group);
        match bus.backlog(topic.as_str(), group).await {
            Ok(lags) => answers.backlog.push((topic.clone(), group.clone(), lags)),
            Err(error) => tracing::debug!(%topic, %group, %error, "no answer about the backlog"),
        }
    }
    answers
}

struct BusCollector {
    bus: Weak<Shared>,
    asked: Arc<Mutex<Answers>>,
}

impl fmt::Debug for BusCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusCollector").finish_non_exhaustive()
    }
}

impl Collector for BusCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        page.counter(
            "laneway_bus_task_panics",
            "Tasks in the background that panicked and were started again, in this process",
            &supervise::panics(),
        )?;
        if let Some(bus) = self.bus.upgrade() {
            write_publishes(&mut page, &bus)?;
            write_subscriptions(&mut page, &bus.subscriptions())?;
            bus.broker.write_metrics(&mut page)?;
        }
        write_answers(&mut page, &self.asked.lock())
    }
}

fn write_publishes(page: &mut Page<'_>, bus: &Shared) -> fmt::Result {
    let topics = bus.all_known();
    let labelled = || {
        topics.iter().map(|known| {
            let labels = Labels([("topic", Some(known.topic.name().as_str()))]);
            (labels, &known.publishes)
        })
    };
    page.counters(
        "laneway_bus_published",
        "Records that were published",
        labelled().map(|(labels, publishes)| (labels, publishes.records.load(Relaxed))),
    )?;
    page.counters(
        "laneway_bus_publish_errors",
        "Records whose publish failed or took too long",
        labelled().map(|(labels, publishes)| (labels, publishes.errors.load(Relaxed))),
    )?;
    page.durations(
        "laneway_bus_publish_duration",
        "How long the broker took for a publish",
        labelled().map(|(labels, publishes)| {
            let mut latency = Latency::default();
            publishes.duration.add_to(&mut latency);
            (labels, latency)
        }),
    )
}

fn write_subscriptions(page: &mut Page<'_>, subscriptions: &[Arc<Inner>]) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&SubscriptionStats) -> u64);
    const COUNTERS: [Counter; 5] = [
        ("laneway_bus_handled", "Deliveries that were handled", |f| {
            f.handled
        }),
        ("laneway_bus_failed", "Attempts that failed", |f| f.failed),
        (
            "laneway_bus_dead_lettered",
            "Events that went to the dead letters",
            |f| f.dead_lettered,
        ),
        ("laneway_bus_parked", "Events that were parked", |f| {
            f.parked
        }),
        (
            "laneway_bus_deduplicated",
            "Events that were skipped because their id was known",
            |f| f.deduplicated,
        ),
    ];
    for (name, help, value) in COUNTERS {
        let values = subscriptions.iter().map(|subscription| {
            let labels = of_subscription(subscription);
            (labels, value(&subscription.stats()))
        });
        page.counters(name, help, values)?;
    }
    page.gauges(
        "laneway_bus_subscription_state",
        "1 for the state that the subscription is in",
        subscriptions.iter().flat_map(|subscription| {
            let Labels([topic, group]) = of_subscription(subscription);
            let current = name_of(&subscription.flow.condition.state());
            STATES.map(|state| {
                let labels = Labels([topic, group, ("state", Some(state))]);
                (labels, u32::from(state == current))
            })
        }),
    )?;
    page.gauges(
        "laneway_bus_last_commit_age_seconds",
        "How long ago the position of the group last moved",
        subscriptions.iter().filter_map(|subscription| {
            let age = subscription.flow.condition.since_commit()?;
            Some((of_subscription(subscription), age.as_secs_f64()))
        }),
    )
}

fn of_subscription(subscription: &Inner) -> Labels<'_, 2> {
    let flow = &subscription.flow;
    Labels([
        ("topic", Some(flow.topic.as_str())),
        ("group", Some(&*flow.group)),
    ])
}

const STATES: [&str; 4] = ["running", "failing", "stopped", "closed"];

fn name_of(state: &State) -> &'static str {
    match state {
        State::Running => "running",
        State::Failing(_) => "failing",
        State::Stopped(_) => "stopped",
        State::Closed => "closed",
    }
}

fn write_answers(page: &mut Page<'_>, answers: &Answers) -> fmt::Result {
    let lags: Vec<_> = answers
        .backlog
        .iter()
        .flat_map(|(topic, group, lags)| {
            lags.iter()
                .map(move |lag| (topic, group, lag.partition.to_string(), lag))
        })
        .collect();
    let labelled = || {
        lags.iter().map(|(topic, group, partition, lag)| {
            let labels = Labels([
                ("topic", Some(topic.as_str())),
                ("group", Some(&***group)),
                ("partition", Some(partition.as_str())),
            ]);
            (labels, lag)
        })
    };
    page.gauges(
        "laneway_bus_backlog_records",
        "Records that are not settled",
        labelled().map(|(labels, lag)| (labels, lag.records)),
    )?;
    page.gauges(
        "laneway_bus_backlog_oldest_age_seconds",
        "How old the oldest unsettled record is",
        labelled().filter_map(|(labels, lag)| Some((labels, lag.oldest?.as_secs_f64()))),
    )?;
    match answers.broker_up {
        Some(up) => page.gauge(
            "laneway_bus_broker_up",
            "Whether the broker can do its work",
            &u32::from(up),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;
    use crate::retry::RetryPolicy;
    use crate::topic::Topic;
    use crate::{Envelope, Failure};

    fn page(registry: &Registry) -> String {
        let mut page = String::new();
        encode(&mut page, registry).expect("a page");
        page
    }

    /// Waits until the page has all these lines; time is paused, so this takes none.
    async fn shows(registry: &Registry, lines: &[&str]) {
        for _ in 0..1000 {
            let page = page(registry);
            if lines.iter().all(|line| page.lines().any(|l| l == *line)) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("{lines:#?} are not all in\n{}", page(registry));
    }

    async fn bus() -> (Bus, Registry) {
        let bus = Bus::open("memory:").await.expect("a bus");
        let one = Topic::domain("orders")
            .partitions(1)
            .build()
            .expect("valid");
        bus.declare(&one).await.expect("declared");
        let mut registry = Registry::default();
        bus.register_metrics(&mut registry);
        (bus, registry)
    }

    async fn publish(bus: &Bus, key: &str) {
        let event = Envelope::builder(key, "Happened").json(&json!(1));
        let event = event.expect("an envelope");
        bus.publish_envelope("orders", &event)
            .await
            .expect("published");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_published_and_what_became_of_it_is_counted() {
        let (bus, registry) = bus().await;
        bus.subscription("orders")
            .group("billing")
            .retry(RetryPolicy::none())
            .envelope(|event| async move {
                match event.aggregate_id().as_str() {
                    "bad" => Err(Failure::new("no")),
                    _ => Ok(()),
                }
            })
            .await
            .expect("subscribed");
        for key in ["good", "bad", "better"] {
            publish(&bus, key).await;
        }
        shows(
            &registry,
            &[
                "# TYPE laneway_bus_published counter",
                r#"laneway_bus_published_total{topic="orders"} 3"#,
                r#"laneway_lanes_processed_total{topic="orders@billing"} 2"#,
                r#"laneway_bus_publish_errors_total{topic="orders"} 0"#,
                r#"laneway_bus_publish_duration_seconds_count{topic="orders"} 3"#,
                r#"laneway_bus_publish_duration_seconds_bucket{le="+Inf",topic="orders"} 3"#,
                r#"laneway_bus_handled_total{topic="orders",group="billing"} 2"#,
                r#"laneway_bus_failed_total{topic="orders",group="billing"} 1"#,
                r#"laneway_bus_dead_lettered_total{topic="orders",group="billing"} 1"#,
                r#"laneway_bus_parked_total{topic="orders",group="billing"} 0"#,
                r#"laneway_bus_deduplicated_total{topic="orders",group="billing"} 0"#,
                r#"laneway_bus_subscription_state{topic="orders",group="billing",state="running"} 1"#,
                r#"laneway_bus_subscription_state{topic="orders",group="billing",state="stopped"} 0"#,
            ],
        )
        .await;
        assert!(page(&registry).contains("laneway_bus_last_commit_age_seconds{"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_backlog_is_asked_for_again_and_again_until_the_bus_closes() {
        let (bus, registry) = bus().await;
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let waiting = gate.clone();
        bus.subscription("orders")
            .time_limit(None)
            .envelope(move |_| {
                let gate = waiting.clone();
                async move {
                    gate.acquire().await?.forget();
                    Ok(())
                }
            })
            .await
            .expect("subscribed");
        for _ in 0..3 {
            publish(&bus, "o-1").await;
        }
        let labels = r#"{topic="orders",group="default",partition="0"}"#;
        let backlog = |records: &str| format!("laneway_bus_backlog_records{labels} {records}");
        shows(&registry, &[&backlog("3"), "laneway_bus_broker_up 1"]).await;
        assert!(page(&registry).contains("\nlaneway_bus_task_panics_total "));
        assert!(page(&registry).contains("laneway_bus_backlog_oldest_age_seconds{"));

        gate.add_permits(3);
        shows(&registry, &[&backlog("0")]).await;

        bus.close(Duration::from_secs(1)).await.expect("closed");
        tokio::time::sleep(2 * ASK_EVERY).await;
        let page = page(&registry);
        assert!(!page.contains("backlog_records{"), "{page}");
        assert!(!page.contains("broker_up"), "{page}");
    }

    #[tokio::test]
    async fn a_registry_keeps_no_bus_alive() {
        let (bus, registry) = bus().await;
        let shared = Arc::downgrade(&bus.shared);
        drop(bus);
        for _ in 0..1000 {
            if shared.upgrade().is_none() {
                assert!(!page(&registry).contains("published"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the bus is still there");
    }

    #[tokio::test(start_paused = true)]
    async fn single_workers_have_no_series_unless_they_are_asked_for() {
        let (bus, registry) = bus().await;
        for group in ["billing", "shipping", "mail"] {
            bus.subscription("orders")
                .group(group)
                .envelope(|_| async { Ok(()) })
                .await
                .expect("subscribed");
        }
        let mut with_workers = Registry::default();
        bus.register_metrics_with_workers(&mut with_workers);
        let (without, with) = (page(&registry), page(&with_workers));
        assert!(!without.contains("worker="), "{without}");
        assert!(with.contains("laneway_lanes_worker_processed_total{worker=\"0\"} 0"));
        let samples = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
        let workers = bus.lanes().stats().workers.len();
        assert_eq!(samples(&with), samples(&without) + 5 * workers);
        let lines = without.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            assert!(line.starts_with("laneway_"), "{line}");
        }
        println!(
            "lines of a scrape: {} without workers, {} with",
            without.lines().count(),
            with.lines().count()
        );
    }
}

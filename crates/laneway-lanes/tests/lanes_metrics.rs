//! What Prometheus reads from the engine.

#[path = "lanes/support.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod support;

use std::collections::HashMap;
use std::time::Duration;

use laneway_lanes::{Engine, Failure, Options, Scope};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use support::{Item, Probe, closed_gate, item, one_topic, open, pass, retry, settle};

/// All samples of a scrape, by name and labels, as they are written.
fn scrape(registry: &Registry) -> HashMap<String, String> {
    let mut page = String::new();
    text::encode(&mut page, registry).expect("it can be written");
    assert!(page.ends_with("# EOF\n"));
    let mut samples = HashMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let before = samples.insert(name.to_owned(), value.to_owned());
        assert_eq!(before, None, "{name} is there twice");
    }
    samples
}

fn registry_of(engine: &Engine) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(engine.metrics().with_workers()));
    registry
}

#[track_caller]
fn assert_samples(samples: &HashMap<String, String>, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        let found = samples.get(*name).map(String::as_str);
        assert_eq!(found, Some(*value), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scrape_has_the_figures_of_topics_and_workers() {
    let gate = closed_gate();
    let held = gate.clone();
    let options = Options::default()
        .workers(2)
        .lane_bound(3)
        .time_limit(Duration::from_hours(1))
        .retry(retry(2, Duration::from_secs(1), Duration::from_secs(1)));
    let probe = Probe::new(move |call| {
        let gate = held.clone();
        async move {
            match (call.key.as_str(), call.attempt) {
                ("held", _) => pass(gate).await,
                ("fails", _) => Err(Failure::new("no")),
                ("panics", 1) => std::panic::resume_unwind(Box::new("boom")),
                _ => Ok(()),
            }
        }
    });
    let (engine, intake, _) = one_topic(options, probe);
    let registry = registry_of(&engine);
    for seq in 0..3 {
        for key in ["held", "fine"] {
            let job = Item {
                bytes: 50,
                ..item(key, seq)
            };
            intake.submit(job).await.expect("there is room");
        }
    }
    for key in ["fails", "panics"] {
        intake.submit(item(key, 0)).await.expect("there is room");
    }
    let refused = intake.submit_timeout(item("held", 9)).await;
    assert!(refused.is_err());
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;

    let samples = scrape(&registry);
    assert_samples(
        &samples,
        &[
            (r#"laneway_lanes_processed_total{topic="t"}"#, "4"),
            (r#"laneway_lanes_failed_total{topic="t"}"#, "3"),
            (r#"laneway_lanes_panicked_total{topic="t"}"#, "1"),
            (r#"laneway_lanes_timed_out_total{topic="t"}"#, "0"),
            (r#"laneway_lanes_exhausted_total{topic="t"}"#, "1"),
            (r#"laneway_lanes_saturated_total{topic="t"}"#, "1"),
            (r#"laneway_lanes_depth{topic="t"}"#, "3"),
            (r#"laneway_lanes_depth_bytes{topic="t"}"#, "150"),
            (r#"laneway_lanes_live{topic="t"}"#, "1"),
            (r#"laneway_lanes_backing_off{topic="t"}"#, "0"),
            ("laneway_lanes_ready", "0"),
            // Three of fine, two of fails with its hand-over, two of panics; one of held has begun.
            (r#"laneway_lanes_run_time_seconds_count{topic="t"}"#, "8"),
            (
                r#"laneway_lanes_run_time_seconds_bucket{le="+Inf",topic="t"}"#,
                "8",
            ),
            (r#"laneway_lanes_queue_time_seconds_count{topic="t"}"#, "8"),
        ],
    );
    let of_workers = |name: &str| -> Vec<&str> {
        (0..2)
            .map(|worker| format!("laneway_lanes_worker_{name}{{worker=\"{worker}\"}}"))
            .map(|name| samples[&name].as_str())
            .collect()
    };
    let sum = |name: &str| -> u64 {
        let numbers = of_workers(name).into_iter().map(str::parse::<u64>);
        numbers.sum::<Result<_, _>>().expect("numbers")
    };
    assert_eq!(sum("processed_total"), 4);
    assert_eq!(sum("failed_total"), 3);
    assert_eq!(sum("restarts_total"), 1);
    assert_eq!(sum("degraded"), 0);
    let idle = of_workers("running_seconds")
        .into_iter()
        .filter(|time| *time == "0.0");
    assert_eq!(idle.count(), 1, "the other one is at work");
    open(&gate);
}

/// On a real clock, because that is what is measured.
#[tokio::test]
async fn times_are_in_cumulative_buckets_of_seconds() {
    let (engine, intake, _) = one_topic(
        Options::default().workers(1),
        Probe::new(|_| async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(())
        }),
    );
    for seq in 0..3 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let samples = scrape(&registry_of(&engine));
    let run_time = |le: &str| -> u64 {
        let name = format!("laneway_lanes_run_time_seconds_bucket{{le=\"{le}\",topic=\"t\"}}");
        samples[&name].parse().expect("a number")
    };
    let buckets = [
        "0.001", "0.01", "0.025", "0.05", "0.5", "1.0", "60.0", "+Inf",
    ]
    .map(run_time);
    assert!(buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets[2], 0, "none was that fast");
    assert_eq!(buckets[7], 3);
    let sum: f64 = samples[r#"laneway_lanes_run_time_seconds_sum{topic="t"}"#]
        .parse()
        .expect("a number");
    // Seconds, and not milliseconds.
    assert!((0.09..60.0).contains(&sum), "{sum}");
}

#[tokio::test(start_paused = true)]
async fn the_hottest_keys_are_ten_at_most_and_any_text_will_do() {
    let (engine, intake, _) = one_topic(Options::default().workers(4), Probe::ok());
    for seq in 0..40_000 {
        let key = match seq % 3 {
            0 => "a \"quoted\"\nkey".to_owned(),
            _ => format!("k{}", seq % 200),
        };
        intake.submit(item(&key, seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let samples = scrape(&registry_of(&engine));
    let hot: Vec<_> = samples
        .iter()
        .filter(|(name, _)| name.starts_with("laneway_lanes_hot_key_share"))
        .collect();
    assert!((1..=10).contains(&hot.len()), "{}", hot.len());
    let share = samples
        .get(r#"laneway_lanes_hot_key_share{topic="t",key="a \"quoted\"\nkey"}"#)
        .and_then(|share| share.parse::<f64>().ok());
    assert!(
        share.is_some_and(|share| share > 0.2),
        "{share:?} of {hot:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn workers_of_topics_with_their_own_are_told_apart() {
    let options = Options::default().workers(1).scope(Scope::PerTopic);
    let (engine, first, _) = one_topic(options, Probe::ok());
    let second = engine.topic("u", Probe::ok()).expect("a new topic");
    for seq in 0..3 {
        first.submit(item("k", seq)).await.expect("there is room");
    }
    second.submit(item("k", 0)).await.expect("there is room");
    first.quiet().await;
    second.quiet().await;
    assert_samples(
        &scrape(&registry_of(&engine)),
        &[
            (
                r#"laneway_lanes_worker_processed_total{topic="t",worker="0"}"#,
                "3",
            ),
            (
                r#"laneway_lanes_worker_processed_total{topic="u",worker="0"}"#,
                "1",
            ),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_gone_has_no_figures_and_is_not_kept() {
    let (engine, intake, _) = one_topic(Options::default().workers(1), Probe::ok());
    let registry = registry_of(&engine);
    assert!(!scrape(&registry).is_empty());
    drop((engine, intake));
    assert!(scrape(&registry).is_empty());
}

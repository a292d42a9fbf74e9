use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// `SplitMix64`: the same numbers in every run.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn worker(number: u8, weight: u32) -> Worker {
    Worker {
        instance: Instance([number; 16]),
        name: format!("w{number}"),
        weight,
        load: Load::default(),
    }
}

fn workers(weights: &[u32]) -> Vec<Worker> {
    (1..)
        .zip(weights)
        .map(|(number, weight)| worker(number, *weight))
        .collect()
}

fn choices(strategy: Strategy, workers: &[Worker], count: usize) -> Vec<u8> {
    let mut balancer = Balancer::new(strategy);
    let mut draws = Draws(7);
    let candidates: Vec<_> = workers.iter().collect();
    (0..count)
        .map(|_| {
            balancer
                .choose(&candidates, draws.next())
                .expect("some worker")
                .0[0]
        })
        .collect()
}

fn counts(choices: &[u8]) -> BTreeMap<u8, u32> {
    let mut counts = BTreeMap::new();
    for choice in choices {
        *counts.entry(*choice).or_default() += 1;
    }
    counts
}

/// Pearson's statistic of what was seen against what was expected.
fn chi_square(counts: &BTreeMap<u8, u32>, expected: &[f64]) -> f64 {
    (1..)
        .zip(expected)
        .map(|(number, expected)| {
            let seen = f64::from(counts.get(&number).copied().unwrap_or(0));
            (seen - expected).powi(2) / expected
        })
        .sum()
}

/// The value that four degrees of freedom exceed once in a hundred thousand runs.
const FOUR_DEGREES: f64 = 28.47;

#[test]
fn random_takes_all_alike_and_in_no_order() {
    let choices = choices(Strategy::Random, &workers(&[1, 1, 1, 1, 1]), 50_000);
    let statistic = chi_square(&counts(&choices), &[10_000.0; 5]);
    assert!(statistic < FOUR_DEGREES, "{statistic}");
    // Pairs are all alike, too: one in five is a repetition.
    let repeated = choices.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((9_500..10_500).contains(&repeated), "{repeated}");
}

#[test]
fn random_looks_at_no_weight() {
    let choices = choices(Strategy::Random, &workers(&[9, 1, 1, 1, 1]), 50_000);
    let statistic = chi_square(&counts(&choices), &[10_000.0; 5]);
    assert!(statistic < FOUR_DEGREES, "{statistic}");
}

#[test]
fn round_robin_takes_one_after_the_other() {
    let choices = choices(Strategy::RoundRobin, &workers(&[5, 1, 1]), 9);
    assert_eq!(choices, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

#[test]
fn round_robin_goes_on_when_workers_come_and_go() {
    let all = workers(&[1, 1, 1, 1]);
    let mut balancer = Balancer::new(Strategy::RoundRobin);
    let mut choose = |alive: &[u8]| {
        let candidates: Vec<_> = all
            .iter()
            .filter(|worker| alive.contains(&worker.instance.0[0]))
            .collect();
        balancer.choose(&candidates, 0).expect("some worker").0[0]
    };
    assert_eq!(choose(&[1, 2, 3]), 1);
    assert_eq!(choose(&[1, 2, 3]), 2);
    // The last one is gone: the one behind it is next all the same.
    assert_eq!(choose(&[1, 3]), 3);
    assert_eq!(choose(&[1, 2, 3, 4]), 4);
    assert_eq!(choose(&[2, 3]), 2);
}

#[test]
fn weighted_random_follows_the_weights() {
    let weights = [1, 2, 3, 4, 10];
    let choices = choices(Strategy::WeightedRandom, &workers(&weights), 100_000);
    let expected = weights.map(|weight| 100_000.0 * f64::from(weight) / 20.0);
    let statistic = chi_square(&counts(&choices), &expected);
    assert!(statistic < FOUR_DEGREES, "{statistic}");
}

#[test]
fn weighted_strategies_leave_the_busy_alone() {
    for strategy in [Strategy::WeightedRandom, Strategy::SmoothWeightedRoundRobin] {
        let mut workers = workers(&[1, 1, 1, 1]);
        workers[1].load.cpu = 0.75;
        workers[2].load.memory = 0.5;
        workers[3].load.held = 10_000;
        let counts = counts(&choices(strategy, &workers, 90_000));
        for (number, share) in [(1, 40_000), (2, 10_000), (3, 20_000), (4, 20_000)] {
            let seen = counts[&number];
            let distance = seen.abs_diff(share);
            assert!(distance < share / 20, "{strategy:?}: {number} got {seen}");
        }
    }
}

#[test]
fn smooth_weighted_round_robin_is_exact_and_spread_out() {
    // The example of its authors.
    let choices = choices(Strategy::SmoothWeightedRoundRobin, &workers(&[5, 1, 1]), 7);
    assert_eq!(choices, [1, 1, 2, 1, 3, 1, 1]);

    let weights = [7, 4, 2, 1, 1];
    let long = self::choices(
        Strategy::SmoothWeightedRoundRobin,
        &workers(&weights),
        15 * 200,
    );
    for round in long.chunks(15) {
        let counts = counts(round);
        for (number, weight) in (1..).zip(weights) {
            assert_eq!(counts[&number], weight);
        }
    }
    // No worker waits for more than about its share of the others.
    for (number, weight) in (1..).zip(weights) {
        let places: Vec<_> = (0..long.len()).filter(|at| long[*at] == number).collect();
        let widest = places
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap();
        assert!(
            widest <= 2 * 15_usize.div_ceil(weight as usize),
            "{number}: {widest}"
        );
    }
}

#[test]
fn least_loaded_evens_out_what_is_held_by_weight() {
    let mut workers = workers(&[1, 1, 2]);
    workers[0].load.held = 90;
    let mut balancer = Balancer::new(Strategy::LeastLoaded);
    let mut draws = Draws(3);
    let mut held = [90_u64, 0, 0];
    for round in 0..310 {
        let candidates: Vec<_> = workers.iter().collect();
        let chosen = balancer
            .choose(&candidates, draws.next())
            .expect("some worker");
        held[usize::from(chosen.0[0] - 1)] += 1;
        // Workers report now and then; what was given meanwhile is counted.
        if round % 10 == 9 {
            for (worker, held) in workers.iter_mut().zip(held) {
                worker.load.held = held;
            }
        }
    }
    assert!(
        held[0].abs_diff(100) <= 1 && held[1].abs_diff(100) <= 1,
        "{held:?}"
    );
    assert!(held[2].abs_diff(200) <= 2, "{held:?}");
}

#[test]
fn least_loaded_takes_equals_by_chance() {
    let workers = workers(&[1; 5]);
    let candidates: Vec<_> = workers.iter().collect();
    let mut draws = Draws(11);
    // Each time another center that has chosen nothing yet.
    let choices: Vec<_> = (0..50_000)
        .map(|_| {
            Balancer::new(Strategy::LeastLoaded)
                .choose(&candidates, draws.next())
                .unwrap()
                .0[0]
        })
        .collect();
    let statistic = chi_square(&counts(&choices), &[10_000.0; 5]);
    assert!(statistic < FOUR_DEGREES, "{statistic}");
}

#[test]
fn without_workers_there_is_no_choice_and_odd_reports_do_no_harm() {
    let strategies = [
        Strategy::Random,
        Strategy::RoundRobin,
        Strategy::WeightedRandom,
        Strategy::SmoothWeightedRoundRobin,
        Strategy::LeastLoaded,
    ];
    let mut odd = workers(&[0, u32::MAX, 1]);
    odd[0].load.cpu = f32::NAN;
    odd[1].load.memory = -7.0;
    odd[2].load = Load {
        held: u64::MAX,
        cpu: f32::INFINITY,
        memory: 2.0,
    };
    let odd: Vec<_> = odd.iter().collect();
    for strategy in strategies {
        assert_eq!(Balancer::new(strategy).choose(&[], 5), None);
        for draw in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(Balancer::new(strategy).choose(&odd, draw).is_some());
        }
    }
}

#[test]
fn a_topic_has_some_workers_or_all_and_any_when_its_own_are_gone() {
    let alive = workers(&[1, 1, 1]);
    let numbers = |mapping: &Mapping| -> Vec<u8> {
        let candidates = mapping.candidates(&alive);
        candidates
            .iter()
            .map(|worker| worker.instance.0[0])
            .collect()
    };
    let some = |names: &[&str]| Mapping::Some(names.iter().map(ToString::to_string).collect());
    assert_eq!(numbers(&Mapping::All), [1, 2, 3]);
    assert_eq!(numbers(&some(&["w3", "w9"])), [3]);
    assert_eq!(numbers(&some(&["w8", "w9"])), [1, 2, 3]);
}

#[test]
fn workers_of_a_topic_are_drawn_without_repetition_and_all_alike() {
    let names: BTreeSet<_> = (1..=5).map(|number| format!("w{number}")).collect();
    let mut draws = Draws(5);
    let mut counts = BTreeMap::new();
    for _ in 0..25_000 {
        let Mapping::Some(chosen) = Mapping::drawn(&names, 2, || draws.next()) else {
            panic!("all of them");
        };
        assert_eq!(chosen.len(), 2);
        for name in chosen {
            *counts.entry(name.as_bytes()[1] - b'0').or_default() += 1;
        }
    }
    let statistic = chi_square(&counts, &[10_000.0; 5]);
    assert!(statistic < FOUR_DEGREES, "{statistic}");
    assert_eq!(Mapping::drawn(&names, 9, || 0), Mapping::Some(names));
}

#[test]
fn a_worker_that_is_taken_out_is_replaced_by_one_that_lives() {
    let alive = workers(&[1, 1, 1]);
    let mut mapping = Mapping::Some(["w1", "w2"].map(str::to_owned).into());
    mapping.replace("w1", &alive, u64::MAX);
    assert_eq!(
        mapping,
        Mapping::Some(["w2", "w3"].map(str::to_owned).into())
    );
    mapping.replace("w9", &alive, 0);
    assert_eq!(
        mapping,
        Mapping::Some(["w2", "w3"].map(str::to_owned).into())
    );
    mapping.replace("w2", &alive[1..], 0);
    assert_eq!(mapping, Mapping::Some(["w3".to_owned()].into()));
}

#[test]
fn strategies_and_mappings_are_written_in_words() {
    let written = serde_json::to_string(&Strategy::SmoothWeightedRoundRobin).unwrap();
    assert_eq!(written, r#""smooth-weighted-round-robin""#);
    let mapping = Mapping::Some(["w1".to_owned()].into());
    assert_eq!(
        serde_json::to_string(&mapping).unwrap(),
        r#"{"some":["w1"]}"#
    );
    assert_eq!(
        serde_json::from_str::<Mapping>(r#""all""#).unwrap(),
        Mapping::All
    );
}

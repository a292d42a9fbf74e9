use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::observe;
use super::scenario::Scenario;
use super::scenarios::{
    announcements, bound, crash, damage, everything, forgetting, intake, keys, look_up,
    look_up_ended, replaying, trimming, unknown_appends, withdraw,
};
use super::steps::Step;
use super::world::World;
use crate::apply::{Memory, rebuild_with};
use crate::checker::check;
use crate::rules::Rule;

struct Cluster(Scenario);

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.begin()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(&self.0, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(&self.0, &step).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($($name:expr),*) => {
                vec![$(Property::always($name, |_, world: &World| world.seen.wrong != Some($name))),*]
            };
        }
        let mut properties = never![
            observe::START_AFTER_YES,
            observe::YES_AFTER_START,
            observe::EARLY,
            observe::START_WITHOUT_BEGUN,
            observe::YES_WITHOUT_ROW,
            observe::TWO_ANSWERS,
            observe::NOT_FOUND,
            observe::OTHER_ACCEPTED,
            observe::SAME_REFUSED,
            observe::SETTLED_WITHOUT_ROW,
            observe::TWO_ENDINGS,
            observe::UNDONE,
            observe::REVIVED,
            observe::DOUBLE_OWNER
        ];
        properties.extend([
            Property::always("one owner in an epoch", |_, world: &World| {
                let first = world.owns(0);
                first.is_none() || first != world.owns(1)
            }),
            Property::always("equal offsets, equal rows", |_, world: &World| {
                copies_agree(world)
            }),
            Property::always("a rebuild is the same", |model: &Self, world: &World| {
                rebuilds(&model.0, world)
            }),
            Property::always(CHECKED, |model: &Self, world: &World| {
                is_clean(&model.0, world)
            }),
            Property::always("it heals", |model: &Self, world: &World| {
                heals(&model.0, world)
            }),
        ]);
        properties
    }
}

fn copies_agree(world: &World) -> bool {
    let [first, second] = &world.centers;
    let shards = [&first.shard, &second.shard, &world.truth];
    let damaged = [first.is_damaged, second.is_damaged, false];
    (0..3).all(|left| {
        (0..left).all(|right| {
            let (a, b) = (shards[left], shards[right]);
            damaged[left]
                || damaged[right]
                || a.head().next != b.head().next
                || (a.head() == b.head() && a.table() == b.table())
        })
    })
}

/// Whether readers that begin at an `open` with its `close`, or at what is left of the log, come to the same.
fn rebuilds(scenario: &Scenario, world: &World) -> bool {
    if world.seen.opens.is_empty() {
        return true;
    }
    let identity = super::world::identity();
    let truth = &world.truth;
    let Some(open) = truth.head().open else {
        return true;
    };
    let from = |offset: u64, must: bool| {
        let records = world.left(offset);
        match rebuild_with(
            scenario.rules,
            &identity,
            offset == 0,
            &records,
            Memory::default,
        ) {
            Ok(built) => {
                let same = |built: &crate::apply::Kept, kept: &crate::apply::Kept| {
                    (built.version, &built.image) == (kept.version, &kept.image)
                };
                built.head() == truth.head()
                    && built.table().iter().count() == truth.table().iter().count()
                    && built
                        .table()
                        .iter()
                        .zip(truth.table().iter())
                        .all(|((a, built), (b, kept))| a == b && same(built, kept))
            }
            Err(_) => !must,
        }
    };
    let opens = world.seen.opens.iter();
    let is_closed = |offset: u64| offset != open.offset || open.is_closed;
    let complete = opens.filter(|offset| is_closed(**offset));
    from(world.trimmed, true)
        && complete
            .into_iter()
            .all(|offset| from(*offset, is_closed(*offset) && *offset == open.offset))
}

/// Whether the checker, which sees the run from outside and knows all rules, finds nothing.
fn is_clean(scenario: &Scenario, world: &World) -> bool {
    if !scenario.is_recorded {
        return true;
    }
    if !scenario.heals_everywhere {
        return check(&world.history(false)).is_empty();
    }
    [false, true].into_iter().all(|are_lost| {
        let mut healed = world.clone();
        // What it has not settled, the checker sees.
        let _ = healed.heal_in_place(scenario, are_lost);
        check(&healed.history(true)).is_empty()
    })
}

fn heals(scenario: &Scenario, world: &World) -> bool {
    use std::hash::{DefaultHasher, Hash, Hasher};
    // The checker judges recorded runs.
    if world.seen.wrong.is_some() || scenario.is_recorded {
        return true;
    }
    if !scenario.heals_everywhere {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        if !hasher.finish().is_multiple_of(16) {
            return true;
        }
    }
    world.heal(scenario, false).is_ok() && world.heal(scenario, true).is_ok()
}

/// Explores everything within the bounds of a scenario, and finds nothing wrong.
fn explore(name: &str, scenario: Scenario) {
    let started = Instant::now();
    let checker = Cluster(scenario)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    println!(
        "{name}: {} unique states of {}, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
    let Some((wrong, path)) = checker.discoveries().into_iter().next() else {
        return;
    };
    let last = path.last_state();
    let healed = [false, true].map(|are_lost| last.heal(&checker.model().0, are_lost));
    panic!(
        "{name}: {wrong} after {:#?}; healing: {healed:?}",
        path.into_actions()
    );
}

/// Explores a scenario without one of the rules, and finds what must never be.
fn breaks(rule: Rule, scenario: Scenario, expected: &'static str) {
    let started = Instant::now();
    let checker = Cluster(scenario.without(rule))
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([expected].into()))
        .timeout(Duration::from_mins(10))
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(expected) else {
        panic!(
            "without {rule:?} there should be {expected:?}, but only: {:?}, in {} states",
            checker.discoveries().keys().collect::<Vec<_>>(),
            checker.unique_state_count()
        );
    };
    let steps = path.into_actions();
    println!(
        "without {rule:?}: {expected:?} after {} steps, {} unique states, {:.1} s: {steps:?}",
        steps.len(),
        checker.unique_state_count(),
        started.elapsed().as_secs_f64()
    );
}

const REBUILD: &str = "a rebuild is the same";
const ONE_OWNER: &str = "one owner in an epoch";
const COPIES: &str = "equal offsets, equal rows";
const CHECKED: &str = "the checker finds nothing";
const HEALS: &str = "it heals";

macro_rules! explored {
    ($($name:ident: $scenario:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            explore(stringify!($scenario), $scenario());
        }
    )*};
}

explored! {
    a_withdraw_meets_attempts_and_a_takeover: withdraw,
    a_withdraw_meets_a_crash: crash,
    two_centers_announce_themselves_at_once: announcements,
    commands_with_keys_are_sent_again: keys,
    a_message_that_only_the_next_owner_knows_is_found: look_up,
    the_same_id_comes_twice: intake,
    what_was_forgotten_comes_again: forgetting,
    appends_have_no_answer: unknown_appends,
    a_log_is_trimmed_while_messages_change: trimming,
    a_dead_message_is_replayed: replaying,
    a_view_goes_wrong: damage,
}

/// `SplitMix64`: the same walk for the same seed.
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One walk, to its end. The steps, and what was wrong at the last one.
fn walk(model: &Cluster, mut seed: u64) -> (Vec<Step>, Option<&'static str>) {
    let properties = model.properties();
    let mut world = model.0.begin();
    let (mut taken, mut steps) = (Vec::new(), Vec::new());
    loop {
        let wrong = properties
            .iter()
            .find(|property| !(property.condition)(model, &world));
        if let Some(wrong) = wrong {
            return (taken, Some(wrong.name));
        }
        steps.clear();
        world.steps(&model.0, &mut steps);
        let next = loop {
            if steps.is_empty() {
                return (taken, None);
            }
            let at = usize::try_from(draw(&mut seed) % steps.len() as u64).unwrap();
            let step = steps.swap_remove(at);
            if let Some(next) = model.next_state(&world, step.clone()) {
                taken.push(step);
                break next;
            }
        };
        world = next;
    }
}

/// Explores a scenario without one of the rules, and the checker finds out from outside.
fn caught(rule: Rule, scenario: Scenario) {
    let is_recorded = true;
    breaks(
        rule,
        Scenario {
            is_recorded,
            ..scenario
        },
        CHECKED,
    );
}

/// The same with runs that had time to settle.
fn caught_healed(rule: Rule, scenario: Scenario) {
    let heals_everywhere = true;
    caught(
        rule,
        Scenario {
            heals_everywhere,
            ..scenario
        },
    );
}

#[test]
fn the_checker_finds_nothing_in_good_runs() {
    let is_recorded = true;
    let model = Cluster(Scenario {
        is_recorded,
        ..everything()
    });
    let started = Instant::now();
    let mut walks = 0_u64;
    while started.elapsed() < Duration::from_secs(bound(5, 60)) || walks < 50 {
        let seed = 1_000_000_000 + walks;
        let (steps, wrong) = walk(&model, seed);
        assert!(
            wrong.is_none(),
            "{} after {steps:?}",
            wrong.unwrap_or_default()
        );
        let mut world = model.0.begin();
        for step in &steps {
            world.take(&model.0, step);
        }
        world
            .heal_in_place(&model.0, walks.is_multiple_of(2))
            .unwrap();
        let found = check(&world.history(true));
        assert!(found.is_empty(), "walk {seed}: {found:?} after {steps:?}");
        walks += 1;
    }
}

macro_rules! found_from_outside {
    ($($name:ident: $how:ident($rule:ident, $scenario:expr);)*) => {$(
        #[test]
        fn $name() {
            $how(Rule::$rule, $scenario);
        }
    )*};
}

// Not reigns: an owner that reads other bytes under its own sequence steps down, so that nothing is seen outside.
found_from_outside! {
    the_checker_catches_writers_that_are_no_owners: caught(OnlyOwnersWrite, withdraw());
    the_checker_catches_copies_that_look_at_a_clock: caught(NoClock, look_up_ended());
    the_checker_catches_rows_without_a_base: caught(Bases, keys());
    the_checker_catches_views_that_nobody_compares: caught(Chains, damage());
    the_checker_catches_answers_without_a_verdict: caught(Verdicts, intake());
    the_checker_catches_digests_of_due_times: caught(DigestAsWritten, intake());
    the_checker_catches_what_is_revived: caught(IntakeAge, forgetting());
    the_checker_catches_a_go_before_its_time: caught(GoAfterReadBack, withdraw());
    the_checker_catches_workers_that_forget_epochs: caught(WorkerEpochs, withdraw());
    the_checker_catches_disclaims_of_others: caught(OwnDisclaims, crash());
    the_checker_catches_a_yes_in_doubt: caught(RefuseInDoubt, withdraw());
    the_checker_catches_not_found_without_a_barrier: caught(Barriers, look_up());
    the_checker_catches_bytes_that_change: caught(FrozenBytes, unknown_appends());
    the_checker_catches_what_is_not_sent_again: caught_healed(ResendAll, unknown_appends());
    the_checker_catches_a_replay_in_two_rows: caught_healed(ReplayInOneRow, replaying());
    the_checker_catches_a_trim_before_its_close: caught(TrimAfterClose, trimming());
    the_checker_catches_facts_out_of_sequence: caught(Sequences, unknown_appends());
}

#[test]
fn everything_at_once_is_walked_through_at_random() {
    let model = Cluster(everything());
    let started = Instant::now();
    let (mut walks, mut states) = (0_u64, 0);
    while started.elapsed() < Duration::from_secs(bound(10, 600)) || walks < 100 {
        let (steps, wrong) = walk(&model, walks);
        assert!(
            wrong.is_none(),
            "walk {walks}: {} after {steps:?}",
            wrong.unwrap_or_default()
        );
        walks += 1;
        states += steps.len();
    }
    println!("everything: {walks} walks, {states} states");
}

macro_rules! broken {
    ($($name:ident: $rule:ident, $scenario:expr => $wrong:expr;)*) => {$(
        #[test]
        fn $name() {
            breaks(Rule::$rule, $scenario, $wrong);
        }
    )*};
}

// One for each rule: what happens without it.
broken! {
    without_only_owners_write: OnlyOwnersWrite, withdraw() => observe::DOUBLE_OWNER;
    without_reigns: Reigns, announcements() => ONE_OWNER;
    without_no_clock: NoClock, withdraw() => COPIES;
    without_bases: Bases, keys() => observe::TWO_ANSWERS;
    without_chains: Chains, damage() => observe::NOT_FOUND;
    without_verdicts: Verdicts, intake() => observe::OTHER_ACCEPTED;
    without_digest_as_written: DigestAsWritten, intake() => observe::SAME_REFUSED;
    without_intake_age: IntakeAge, forgetting() => observe::REVIVED;
    without_go_after_read_back: GoAfterReadBack, withdraw() => observe::START_WITHOUT_BEGUN;
    without_worker_epochs: WorkerEpochs, withdraw() => observe::START_AFTER_YES;
    without_own_disclaims: OwnDisclaims, crash() => observe::YES_AFTER_START;
    without_refuse_in_doubt: RefuseInDoubt, withdraw() => observe::YES_AFTER_START;
    without_barriers: Barriers, look_up() => observe::NOT_FOUND;
    without_frozen_bytes: FrozenBytes, unknown_appends() => observe::YES_WITHOUT_ROW;
    without_resend_all: ResendAll, unknown_appends() => HEALS;
    without_replay_in_one_row: ReplayInOneRow, replaying() => HEALS;
    without_trim_after_close: TrimAfterClose, trimming() => REBUILD;
    without_carried_above: CarriedAbove, trimming() => observe::UNDONE;
    without_stubs: Stubs, trimming() => REBUILD;
}

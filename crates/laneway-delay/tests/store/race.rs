//! Claims, withdraws and extends of the same messages at the same time, from many tasks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use laneway_delay::Extend;
use laneway_delay::store::{Change, Operation, Outcome};

use crate::stage::{Stage, at, id_of, message};

const MESSAGES: usize = 3000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_claim_and_a_withdraw_one_wins_on_disk() {
    one_wins(Arc::new(Stage::on_disk().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_claim_and_a_withdraw_one_wins_on_disk_with_tiny_sizes() {
    one_wins(Arc::new(Stage::tiny().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_claim_and_a_withdraw_one_wins_in_memory() {
    one_wins(Arc::new(Stage::in_memory())).await;
}

async fn one_wins(stage: Arc<Stage>) {
    let drafts = (0..MESSAGES).map(|number| {
        let submission = message(&format!("m{number}"), 10);
        crate::stage::draft(submission, 0)
    });
    let answers = stage.store.submit(drafts.collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    let waiting = stage.waiting().await;
    let claiming = {
        let stage = stage.clone();
        tokio::spawn(async move {
            let mut claimed = HashSet::new();
            for part in waiting.chunks(7) {
                for claim in stage.claim(part.to_vec(), 10).await {
                    claimed.insert(claim.message.id.to_string());
                }
            }
            claimed
        })
    };
    let changing: Vec<_> = (0..8)
        .map(|task| {
            let stage = stage.clone();
            tokio::spawn(async move {
                let (mut withdrawn, mut extended) = (HashSet::new(), HashSet::new());
                for number in (task..MESSAGES).rev().step_by(8) {
                    let id = format!("m{number}");
                    if number % 3 == 0 {
                        let extend = Operation::Extend(Extend::To(at(50)));
                        if stage.change(&id, extend, 5).await.is_ok() {
                            extended.insert(id);
                        }
                    } else if stage.change(&id, Operation::Withdraw, 5).await.is_ok() {
                        withdrawn.insert(id);
                    }
                }
                (withdrawn, extended)
            })
        })
        .collect();
    let claimed = claiming.await.unwrap();
    let (mut withdrawn, mut extended) = (HashSet::new(), HashSet::new());
    for task in changing {
        let (some_withdrawn, some_extended) = task.await.unwrap();
        withdrawn.extend(some_withdrawn);
        extended.extend(some_extended);
    }
    assert!(claimed.is_disjoint(&withdrawn), "fired after a withdraw");
    assert!(claimed.is_disjoint(&extended), "fired before it was due");
    assert_eq!(claimed.len() + withdrawn.len() + extended.len(), MESSAGES);
    // Whoever was turned away stands in line; nobody else does.
    let left = stage.claim(stage.waiting().await, 50).await;
    let left: HashSet<_> = left
        .iter()
        .map(|claim| claim.message.id.to_string())
        .collect();
    assert_eq!(left, extended);
    for claim in stage.claim(stage.waiting().await, 50).await {
        stage.settle(claim, Outcome::Delivered, 51).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_change_builds_on_the_one_before_on_disk() {
    each_counts(Arc::new(Stage::on_disk().await), 200, 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_change_builds_on_the_one_before_on_disk_with_tiny_sizes() {
    each_counts(Arc::new(Stage::tiny().await), 20, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_change_builds_on_the_one_before_in_memory() {
    each_counts(Arc::new(Stage::in_memory()), 200, 12).await;
}

/// Many change the same messages at the same time: of as many steps that were said yes to, none is lost, and
/// of as many withdraws one is said yes to.
async fn each_counts(stage: Arc<Stage>, messages: usize, rounds: usize) {
    const CLIENTS: usize = 8;
    let ids: Vec<String> = (0..messages).map(|number| format!("m{number}")).collect();
    for id in &ids {
        stage.submit(message(id, 10), 0).await.unwrap();
    }
    // Everybody asks for each message twice in one request.
    let ask = async |what: Operation, rounds: usize| {
        let clients = (0..CLIENTS).map(|_| {
            let (stage, ids) = (stage.clone(), ids.clone());
            tokio::spawn(async move {
                let mut yes = 0;
                for _ in 0..rounds {
                    let twice = ids.iter().chain(&ids);
                    let changes = twice.map(|id| Change {
                        id: id_of(id),
                        now: at(5),
                        what,
                    });
                    let answers = stage.store.change(changes.collect()).await;
                    yes += answers.iter().filter(|answer| answer.is_ok()).count();
                }
                yes
            })
        });
        let mut yes = 0;
        for client in clients.collect::<Vec<_>>() {
            yes += client.await.unwrap();
        }
        yes
    };
    let step = Operation::Extend(Extend::By(Duration::from_millis(1)));
    let steps = 2 * CLIENTS * rounds;
    assert_eq!(ask(step, rounds).await, steps * ids.len());
    for id in &ids {
        let due = stage.get(id).await.unwrap().record.due();
        assert_eq!(due, at(10 + steps as u64), "{id}");
    }
    assert_eq!(stage.waiting().await.len(), ids.len());
    assert_eq!(ask(Operation::Withdraw, 1).await, ids.len());
    assert!(stage.waiting().await.is_empty());
}

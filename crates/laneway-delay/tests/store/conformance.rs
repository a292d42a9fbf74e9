//! The promises, one by one.

use std::time::Duration;

use laneway_delay::message::Reason;
use laneway_delay::store::{Change, DueKey, Operation, Outcome, Settlement};
use laneway_delay::{
    Error, Extend, HistoryEvent, Query, State, StateName, Submission, Target, Undelivered, When,
};

use crate::stage::{Stage, at, draft, failed, id_of, message, on_every_store};

on_every_store! {
    a_message_is_kept_as_it_was_submitted
    who_takes_a_place_is_told
    the_line_is_in_order_and_can_be_read_in_parts
    a_claim_shuts_out_all_others
    nothing_is_claimed_early_or_where_it_no_longer_stands
    a_failure_takes_a_later_place_and_the_last_one_ends_it
    a_released_claim_leaves_no_trace
    what_was_withdrawn_stays_so
    extending_moves_and_never_revives
    a_dead_message_becomes_a_new_one
    only_what_has_ended_is_purged
    one_key_is_one_message
    one_id_is_one_message
    a_message_that_was_there_already_is_told_with_its_state
    a_message_is_replaced_unless_it_may_be_delivered
    a_message_is_stopped_whatever_became_of_its_attempts
    no_message_is_moved_further_than_it_may_be
    a_batch_sees_what_it_has_done
    lists_by_state_topic_and_time_a_page_at_a_time
    a_topic_lists_what_is_its_own_until_it_is_gone
    counts_follow
    old_things_are_forgotten_and_dead_ones_are_not
    what_a_clock_set_back_made_old_is_forgotten
    unknown_ids_are_told
}

async fn a_message_is_kept_as_it_was_submitted(stage: Stage) {
    let target = Target::bus("orders", "order-1", "Due");
    let mut submission = Submission::new("reminders", When::At(at(5000)), target)
        .id(id_of("a"))
        .payload(vec![0, 255, 7])
        .content_type("application/octet-stream")
        .retry(laneway_delay::Schedule::new([Duration::from_millis(1500)]));
    submission.metadata.insert("cart".into(), "17".into());
    let accepted = stage.submit(submission.clone(), 1000).await.unwrap();
    assert_eq!((accepted.due, accepted.is_new), (at(5000), true));
    let kept = stage.get("a").await.unwrap();
    assert_eq!(kept.payload, submission.payload);
    assert_eq!(kept.content_type, submission.content_type);
    assert_eq!(kept.target, submission.target);
    assert_eq!(kept.retry, submission.retry);
    assert_eq!(kept.metadata, submission.metadata);
    assert_eq!(
        (kept.topic.as_str(), kept.accepted),
        ("reminders", at(1000))
    );
    assert_eq!(kept.record.state(), State::Scheduled { at: at(5000) });
    assert!(stage.get("b").await.is_none());
}

async fn who_takes_a_place_is_told(stage: Stage) {
    stage.submit(message("a", 50), 0).await.unwrap();
    let extend = Operation::Extend(Extend::To(at(70)));
    stage.change("a", extend, 0).await.unwrap();
    let admitted = stage.due_index.admitted.lock().unwrap().clone();
    let due_keys: Vec<_> = admitted.iter().map(|one| one.due_key.at).collect();
    assert_eq!(due_keys, [at(50), at(70)]);
    assert_eq!(stage.waiting().await, admitted[1..]);
}

async fn the_line_is_in_order_and_can_be_read_in_parts(stage: Stage) {
    for (id, due) in [("c", 30), ("a", 10), ("b", 20), ("b2", 20)] {
        stage.submit(message(id, due), 0).await.unwrap();
    }
    let all = stage.waiting().await;
    let due_keys: Vec<_> = all.iter().map(|one| one.due_key.at.as_millis()).collect();
    assert_eq!(due_keys, [10, 20, 20, 30]);
    assert!(all.is_sorted_by_key(|one| one.due_key));
    let until = DueKey::at(at(30));
    let part = stage.store.scan(DueKey::FIRST, until, 10).await.unwrap();
    assert_eq!(part, all[..3]);
    let part = stage
        .store
        .scan(all[0].due_key.next(), until, 1)
        .await
        .unwrap();
    assert_eq!(part, all[1..2]);
    assert!(
        stage
            .store
            .scan(until, DueKey::FIRST, 9)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn a_claim_shuts_out_all_others(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    let waiting = stage.waiting().await;
    let claims = stage.claim(waiting.clone(), 10).await;
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].message.record.attempts(), 1);
    assert!(stage.claim(waiting, 10).await.is_empty());
    for asked in [
        Operation::Withdraw,
        Operation::Extend(Extend::To(at(99))),
        Operation::Purge,
        Operation::Replay,
    ] {
        let Err(Error::Refused(refusal)) = stage.change("a", asked, 11).await else {
            panic!("{asked:?} went through");
        };
        assert_eq!(refusal.state, State::Firing { since: at(10) });
    }
    let firing = stage.get("a").await.unwrap();
    assert_eq!(firing.record.state(), State::Firing { since: at(10) });
    stage
        .settle(claims[0].clone(), Outcome::Delivered, 12)
        .await;
    let ended = stage.get("a").await.unwrap();
    assert_eq!(ended.record.state(), State::Delivered { at: at(12) });
    assert_eq!(
        ended.history.last().unwrap().what,
        HistoryEvent::Delivered { attempt: 1 }
    );
    // Told twice: the second time is for nothing.
    stage.settle(claims[0].clone(), failed(), 13).await;
    assert_eq!(stage.get("a").await.unwrap(), ended);
}

async fn nothing_is_claimed_early_or_where_it_no_longer_stands(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    let old = stage.waiting().await;
    assert!(stage.claim(old.clone(), 9).await.is_empty());
    stage
        .change("a", Operation::Extend(Extend::To(at(20))), 9)
        .await
        .unwrap();
    assert!(stage.claim(old.clone(), 30).await.is_empty());
    // Both together: the one that counts is found.
    let both = [old, stage.waiting().await].concat();
    assert_eq!(stage.claim(both, 30).await.len(), 1);
}

async fn a_failure_takes_a_later_place_and_the_last_one_ends_it(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    let mut now = 10;
    for wait in [1_000, 10_000, 60_000, 300_000, 3_000_000] {
        let claims = stage.claim(stage.waiting().await, now).await;
        stage.settle(claims[0].clone(), failed(), now).await;
        now += wait;
        let waiting = stage.waiting().await;
        assert_eq!(waiting[0].due_key.at, at(now));
        assert_eq!(
            stage.due_index.admitted.lock().unwrap().last(),
            Some(&waiting[0])
        );
    }
    let claims = stage.claim(stage.waiting().await, now).await;
    assert_eq!(claims[0].message.record.attempts(), 6);
    stage.settle(claims[0].clone(), failed(), now).await;
    assert!(stage.waiting().await.is_empty());
    let dead = stage.get("a").await.unwrap();
    assert_eq!(StateName::from(dead.record.state()), StateName::Dead);
    assert_eq!(dead.record.due(), at(10));
}

async fn a_released_claim_leaves_no_trace(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    let (before, waiting) = (stage.get("a").await, stage.waiting().await);
    let claims = stage.claim(waiting.clone(), 10).await;
    stage.settle(claims[0].clone(), Outcome::Released, 11).await;
    assert_eq!(stage.get("a").await, before);
    assert_eq!(stage.waiting().await, waiting);
    assert_eq!(stage.claim(waiting, 12).await.len(), 1);
}

async fn what_was_withdrawn_stays_so(stage: Stage) {
    stage
        .submit(message("a", 10).payload("body"), 0)
        .await
        .unwrap();
    let waiting = stage.waiting().await;
    let withdrawn = stage.change("a", Operation::Withdraw, 5).await.unwrap();
    assert_eq!(withdrawn.record.state(), State::Withdrawn { at: at(5) });
    assert!(withdrawn.payload.is_empty());
    assert!(stage.waiting().await.is_empty());
    assert!(stage.claim(waiting, 99).await.is_empty());
    let again = stage.change("a", Operation::Withdraw, 6).await;
    assert!(matches!(again, Err(Error::Refused(_))));
    assert_eq!(stage.get("a").await, Some(withdrawn));
}

async fn extending_moves_and_never_revives(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    let later = Operation::Extend(Extend::By(Duration::from_millis(7)));
    let moved = stage.change("a", later, 5).await.unwrap();
    assert_eq!(moved.record.due(), at(17));
    for earlier in [17, 3] {
        let refused = stage
            .change("a", Operation::Extend(Extend::To(at(earlier))), 5)
            .await;
        assert!(matches!(refused, Err(Error::Refused(_))));
    }
    // It still stands where it stood.
    let claims = stage.claim(stage.waiting().await, 17).await;
    stage
        .settle(claims[0].clone(), Outcome::Delivered, 18)
        .await;
    assert!(matches!(
        stage.change("a", later, 19).await,
        Err(Error::Refused(_))
    ));
    assert!(stage.waiting().await.is_empty());
}

async fn a_dead_message_becomes_a_new_one(stage: Stage) {
    stage
        .submit(message("a", 10).payload("body"), 0)
        .await
        .unwrap();
    let rejected = Outcome::Failed(
        Undelivered::permanent("410"),
        laneway_delay::Schedule::default(),
    );
    let claims = stage.claim(stage.waiting().await, 10).await;
    stage.settle(claims[0].clone(), rejected, 11).await;
    let new = stage.change("a", Operation::Replay, 50).await.unwrap();
    assert_eq!(new.payload, "body");
    assert_eq!((new.record.due(), new.record.attempts()), (at(50), 0));
    assert_eq!(
        new.history[0].what,
        HistoryEvent::Replayed { of: id_of("a") }
    );
    assert!(stage.get("a").await.is_none());
    assert_eq!(stage.get(new.id.as_str()).await, Some(new));
    assert_eq!(stage.waiting().await.len(), 1);
}

async fn only_what_has_ended_is_purged(stage: Stage) {
    stage.submit(message("a", 10), 0).await.unwrap();
    assert!(matches!(
        stage.change("a", Operation::Purge, 1).await,
        Err(Error::Refused(_))
    ));
    stage.change("a", Operation::Withdraw, 2).await.unwrap();
    stage.change("a", Operation::Purge, 3).await.unwrap();
    assert!(stage.get("a").await.is_none());
    // The id is free again.
    assert!(stage.submit(message("a", 10), 4).await.unwrap().is_new);
}

async fn one_key_is_one_message(stage: Stage) {
    let submission = || Submission {
        id: None,
        ..message("x", 50).idempotency_key("key")
    };
    let first = stage.submit(submission(), 0).await.unwrap();
    let again = stage.submit(submission(), 9).await.unwrap();
    assert_eq!((first.id.clone(), first.due), (again.id, again.due));
    assert!(!again.is_new);
    let other = stage.submit(submission().payload("x"), 9).await;
    assert!(matches!(other, Err(Error::KeyReused { id, .. }) if id == first.id));
    assert_eq!(stage.waiting().await.len(), 1);
    // Also when the message is no more.
    stage
        .change(first.id.as_str(), Operation::Withdraw, 9)
        .await
        .unwrap();
    stage
        .change(first.id.as_str(), Operation::Purge, 9)
        .await
        .unwrap();
    assert!(!stage.submit(submission(), 10).await.unwrap().is_new);
}

async fn one_id_is_one_message(stage: Stage) {
    assert!(stage.submit(message("a", 50), 0).await.unwrap().is_new);
    stage
        .change("a", Operation::Extend(Extend::To(at(60))), 1)
        .await
        .unwrap();
    let again = stage.submit(message("a", 50), 2).await.unwrap();
    assert_eq!((again.is_new, again.due), (false, at(60)));
    let other = stage.submit(message("a", 51), 2).await;
    assert!(matches!(other, Err(Error::IdTaken(_))));
}

async fn a_message_that_was_there_already_is_told_with_its_state(stage: Stage) {
    let again = || message("a", 50).idempotency_key("k");
    let by_id = || message("a", 50);
    let told = async |submission| stage.submit(submission, 60).await.unwrap().state;
    assert_eq!(told(again()).await, Some(StateName::Scheduled));
    let waiting = stage.waiting().await;
    let claim = stage.store.claim(waiting, at(50)).await.unwrap().remove(0);
    assert_eq!(told(by_id()).await, Some(StateName::Firing));
    let (now, outcome) = (at(50), Outcome::Released);
    let released = Settlement {
        claim,
        now,
        outcome,
    };
    stage.store.settle(vec![released]).await.unwrap();
    stage.change("a", Operation::Withdraw, 60).await.unwrap();
    assert_eq!(told(by_id()).await, Some(StateName::Withdrawn));
    assert_eq!(told(again()).await, Some(StateName::Withdrawn));
    stage.change("a", Operation::Purge, 60).await.unwrap();
    assert_eq!(told(again()).await, None, "only the key is known still");
}

async fn a_message_is_replaced_unless_it_may_be_delivered(stage: Stage) {
    let replace = |due| message("a", due).replace();
    // Nobody is there: it is a message like any other.
    assert!(stage.submit(replace(50), 0).await.unwrap().is_new);
    // One that waits.
    let accepted = stage.submit(replace(70), 1).await.unwrap();
    assert_eq!((accepted.is_new, accepted.due), (true, at(70)));
    let waiting = stage.waiting().await;
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].due_key.at, at(70));
    // One that has ended.
    stage.change("a", Operation::Withdraw, 2).await.unwrap();
    assert!(stage.submit(replace(80), 3).await.unwrap().is_new);
    let waiting = stage.waiting().await;
    assert_eq!(waiting.len(), 1);
    // One that fires, and one that may have been delivered.
    let claim = stage.store.claim(waiting, at(80)).await.unwrap().remove(0);
    let refused = stage.submit(replace(90), 81).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    let (now, outcome) = (at(82), Outcome::Unknown("no answer".to_owned()));
    let unknown = Settlement {
        claim,
        now,
        outcome,
    };
    stage.store.settle(vec![unknown]).await.unwrap();
    for refused in [
        stage.submit(replace(90), 83).await.map(drop),
        stage.change("a", Operation::Withdraw, 83).await.map(drop),
    ] {
        assert!(
            matches!(refused, Err(Error::Refused(refusal)) if refusal.reason == Reason::InDoubt)
        );
    }
    assert_eq!(stage.get("a").await.unwrap().record.attempts(), 1);
    assert_eq!(stage.waiting().await.len(), 1);
    let counts = stage.store.counts()["t"];
    assert_eq!((counts.scheduled, counts.withdrawn), (1, 0));
}

async fn a_message_is_stopped_whatever_became_of_its_attempts(stage: Stage) {
    let claim = async |id: &str| {
        stage.submit(message(id, 50), 0).await.unwrap();
        let waiting = stage.waiting().await;
        stage.claim(waiting, 50).await.remove(0)
    };
    let unknown = || {
        let schedule = laneway_delay::Schedule::default();
        Outcome::Failed(Undelivered::unknown("no answer"), schedule)
    };
    let is_in_doubt = async |id: &str| stage.get(id).await.unwrap().record.is_in_doubt();
    // One that waits and was never tried: no doubt.
    stage.submit(message("a", 50), 0).await.unwrap();
    let stopped = stage.change("a", Operation::Stop, 1).await.unwrap();
    assert!(!stopped.record.is_in_doubt());
    assert_eq!(stopped.history[0].what, HistoryEvent::Withdrawn);
    // One whose attempt gave no answer. It waits for the next one, and is neither moved nor taken back.
    let claimed = claim("b").await;
    stage.settle(claimed, unknown(), 60).await;
    let extend = Operation::Extend(Extend::By(Duration::from_mins(1)));
    for asked in [Operation::Withdraw, extend] {
        let refused = stage.change("b", asked, 61).await;
        assert!(
            matches!(refused, Err(Error::Refused(refusal)) if refusal.reason == Reason::InDoubt)
        );
    }
    let waiting = stage.waiting().await;
    assert_eq!(waiting.len(), 1, "it is tried again");
    let stopped = stage.change("b", Operation::Stop, 62).await.unwrap();
    assert!(stopped.record.is_in_doubt() && is_in_doubt("b").await);
    assert_eq!(stopped.history[1].what, HistoryEvent::Stopped);
    assert!(stage.claim(waiting, 5000).await.is_empty());
    // One whose attempt runs, and ends afterwards, or in the same moment.
    for (id, at_once) in [("c", false), ("d", true)] {
        let claimed = claim(id).await;
        if at_once {
            let settlement = Settlement {
                claim: claimed,
                now: at(70),
                outcome: Outcome::Delivered,
            };
            let change = Change {
                id: id_of(id),
                now: at(70),
                what: Operation::Stop,
            };
            let stopping = stage.store.change(vec![change]);
            let settling = stage.store.settle(vec![settlement]);
            let (stopped, settled) = tokio::join!(stopping, settling);
            settled.unwrap();
            let delivered = StateName::from(stage.get(id).await.unwrap().record.state());
            let expected = match stopped[0] {
                Ok(_) => StateName::Withdrawn,
                Err(_) => StateName::Delivered,
            };
            assert_eq!(delivered, expected, "one of the two");
        } else {
            let stopped = stage.change(id, Operation::Stop, 70).await.unwrap();
            assert!(stopped.record.is_in_doubt());
            stage.settle(claimed, Outcome::Delivered, 71).await;
            let found = stage.get(id).await.unwrap().record.state();
            assert_eq!(found, State::Withdrawn { at: at(70) });
        }
        assert!(stage.waiting().await.is_empty());
    }
    // What has ended is not stopped, and what was stopped can be planned anew.
    let again = stage.change("b", Operation::Stop, 80).await;
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    let replaced = stage.submit(message("b", 90).replace(), 81).await.unwrap();
    assert!(replaced.is_new);
    let counts = stage.store.counts()["t"];
    assert_eq!((counts.scheduled, counts.firing), (1, 0));
    assert_eq!(counts.withdrawn + counts.delivered, 3);
    // Dead letters tell it, too.
    let claimed = claim("e").await;
    let once = laneway_delay::Schedule::new([]);
    let last = Outcome::Failed(Undelivered::unknown("no answer"), once);
    stage.settle(claimed, last, 90).await;
    let dead = stage.get("e").await.unwrap();
    assert_eq!(StateName::from(dead.record.state()), StateName::Dead);
    assert!(dead.record.is_in_doubt());
}

async fn no_message_is_moved_further_than_it_may_be(stage: Stage) {
    stage.submit(message("a", 50), 0).await.unwrap();
    let by = |millis| Extend::By(Duration::from_millis(millis));
    let refused = stage
        .change("a", Operation::ExtendUntil(by(51), at(100)), 0)
        .await;
    assert!(matches!(refused, Err(Error::Invalid { field: "due", .. })));
    let moved = stage
        .change("a", Operation::ExtendUntil(by(50), at(100)), 0)
        .await;
    assert_eq!(moved.unwrap().record.due(), at(100));
    // Whatever is asked for, it can be listed.
    stage
        .change("a", Operation::Extend(by(u64::MAX)), 0)
        .await
        .unwrap();
    let listed = stage.store.list(&Query::new(StateName::Scheduled)).await;
    assert_eq!(listed.unwrap().messages.len(), 1);
}

async fn a_batch_sees_what_it_has_done(stage: Stage) {
    let drafts = [
        message("a", 50),
        message("a", 50),
        message("a", 51),
        message("b", 1).idempotency_key("k"),
        message("c", 1).idempotency_key("k"),
    ];
    let drafts = drafts.map(|submission| draft(submission, 0)).to_vec();
    let answers = stage.store.submit(drafts).await;
    let told: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().ok().map(|accepted| accepted.is_new))
        .collect();
    assert_eq!(
        told,
        [Some(true), Some(false), None, Some(true), Some(false)]
    );
    assert_eq!(answers[4].as_ref().unwrap().id, id_of("b"));
    assert_eq!(stage.waiting().await.len(), 2);
}

async fn a_topic_lists_what_is_its_own_until_it_is_gone(stage: Stage) {
    let list = async |topic: &str, state| {
        let query = Query {
            topic: Some(topic.to_owned()),
            ..Query::new(state)
        };
        let ids = stage.list(query).await.into_iter();
        ids.map(|message| message.id.to_string())
            .collect::<Vec<_>>()
    };
    // One topic is the beginning of the other, and its end is the letter of a state.
    for (id, topic) in [("a", "t"), ("b", "ts"), ("c", "t"), ("d", "t")] {
        let mut submission = message(id, 10);
        submission.topic = topic.to_owned();
        stage.submit(submission, 0).await.unwrap();
    }
    assert_eq!(list("t", StateName::Scheduled).await, ["a", "c", "d"]);
    assert_eq!(list("ts", StateName::Scheduled).await, ["b"]);
    let later = Operation::Extend(Extend::To(at(60)));
    stage.change("a", later, 1).await.unwrap();
    stage.change("d", Operation::Withdraw, 1).await.unwrap();
    assert_eq!(list("t", StateName::Scheduled).await, ["c", "a"]);
    assert_eq!(list("t", StateName::Withdrawn).await, ["d"]);
    for claim in stage.claim(stage.waiting().await, 10).await {
        stage.settle(claim, Outcome::Delivered, 11).await;
    }
    assert_eq!(list("t", StateName::Scheduled).await, ["a"]);
    assert_eq!(list("t", StateName::Delivered).await, ["c"]);
    assert_eq!(list("ts", StateName::Delivered).await, ["b"]);
    stage.forget(0, 50).await;
    for state in [StateName::Delivered, StateName::Withdrawn] {
        assert!(list("t", state).await.is_empty());
        assert!(list("ts", state).await.is_empty());
    }
    // The clock was set back: it ends before those that are forgotten, and is listed all the same.
    stage.submit(message("e", 90), 19).await.unwrap();
    stage.change("e", Operation::Withdraw, 0).await.unwrap();
    assert_eq!(list("t", StateName::Withdrawn).await, ["e"]);
    let rejected = Undelivered::permanent("410");
    let rejected = Outcome::Failed(rejected, laneway_delay::Schedule::default());
    let claims = stage.claim(stage.waiting().await, 60).await;
    stage.settle(claims[0].clone(), rejected, 61).await;
    assert_eq!(list("t", StateName::Dead).await, ["a"]);
    let new = stage.change("a", Operation::Replay, 70).await.unwrap();
    assert!(list("t", StateName::Dead).await.is_empty());
    assert_eq!(list("t", StateName::Scheduled).await, [new.id.as_str()]);
}

async fn lists_by_state_topic_and_time_a_page_at_a_time(stage: Stage) {
    for number in 0..10_u64 {
        let mut submission = message(&format!("m{number}"), 100 + number);
        submission.topic = String::from(if number % 2 == 0 { "even" } else { "odd" });
        stage.submit(submission, 0).await.unwrap();
    }
    for id in ["m0", "m1", "m2"] {
        stage.change(id, Operation::Withdraw, 7).await.unwrap();
    }
    let firing = stage.claim(stage.waiting().await[..1].to_vec(), 200).await;
    assert_eq!(firing[0].message.id, id_of("m3"));
    let ids = async |query: Query| {
        let (mut ids, mut query) = (Vec::new(), query);
        loop {
            let page = stage.store.list(&query).await.unwrap();
            assert!(page.messages.len() <= query.limit);
            ids.extend(page.messages.into_iter().map(|one| one.id.to_string()));
            match page.next {
                Some(next) => query.after = Some(next.to_string().parse().unwrap()),
                None => return ids.join(" "),
            }
        }
    };
    for limit in [1, 2, 100] {
        let of = |state| Query {
            limit,
            ..Query::new(state)
        };
        assert_eq!(ids(of(StateName::Scheduled)).await, "m4 m5 m6 m7 m8 m9");
        assert_eq!(ids(of(StateName::Withdrawn)).await, "m0 m1 m2");
        assert_eq!(ids(of(StateName::Firing)).await, "m3");
        assert_eq!(ids(of(StateName::Dead)).await, "");
        let odd = Query {
            topic: Some("odd".to_owned()),
            from: Some(at(106)),
            ..of(StateName::Scheduled)
        };
        assert_eq!(ids(odd).await, "m7 m9");
        let part = Query {
            from: Some(at(105)),
            until: Some(at(107)),
            ..of(StateName::Scheduled)
        };
        assert_eq!(ids(part).await, "m5 m6");
    }
}

async fn counts_follow(stage: Stage) {
    assert!(stage.store.counts().is_empty());
    for id in ["a", "b", "c"] {
        stage.submit(message(id, 10), 0).await.unwrap();
    }
    stage.change("a", Operation::Withdraw, 1).await.unwrap();
    let claims = stage.claim(stage.waiting().await, 10).await;
    let counts = stage.store.counts()["t"];
    assert_eq!(
        (counts.scheduled, counts.firing, counts.withdrawn),
        (0, 2, 1)
    );
    stage
        .settle(claims[0].clone(), Outcome::Delivered, 11)
        .await;
    stage.settle(claims[1].clone(), failed(), 11).await;
    let counts = stage.store.counts()["t"];
    assert_eq!(
        (counts.scheduled, counts.firing, counts.delivered),
        (1, 0, 1)
    );
}

async fn old_things_are_forgotten_and_dead_ones_are_not(stage: Stage) {
    for number in 0..10 {
        let submission = message(&format!("m{number}"), 10).idempotency_key(format!("k{number}"));
        stage.submit(submission, number).await.unwrap();
    }
    for number in 0..5_u64 {
        stage
            .change(&format!("m{number}"), Operation::Withdraw, 20 + number)
            .await
            .unwrap();
    }
    let rejected = Outcome::Failed(
        Undelivered::permanent("410"),
        laneway_delay::Schedule::default(),
    );
    let mut claims = stage.claim(stage.waiting().await, 30).await;
    stage
        .settle(claims.pop().unwrap(), Outcome::Delivered, 30)
        .await;
    stage.settle(claims.pop().unwrap(), rejected, 30).await;
    stage.forget(3, 22).await;
    for number in 0..5_u64 {
        let is_there = stage.get(&format!("m{number}")).await.is_some();
        assert_eq!(is_there, number >= 2, "message {number}");
    }
    for (number, is_new) in [(2, true), (3, false)] {
        let submission = message(&format!("n{number}"), 10).idempotency_key(format!("k{number}"));
        assert_eq!(
            stage.submit(submission, 40).await.unwrap().is_new,
            is_new,
            "key {number}"
        );
    }
    stage.forget(3, 1000).await;
    let counts = stage.store.counts()["t"];
    assert_eq!((counts.withdrawn, counts.delivered, counts.dead), (0, 0, 1));
}

async fn what_a_clock_set_back_made_old_is_forgotten(stage: Stage) {
    let keyed = |id: &str| message(id, 900).idempotency_key(format!("key of {id}"));
    let forget = async |before| stage.forget(before, before).await;
    stage.submit(keyed("a"), 500).await.unwrap();
    stage.change("a", Operation::Withdraw, 500).await.unwrap();
    forget(600).await;
    // The clock is set back, and forgetting goes by it.
    stage.submit(keyed("b"), 100).await.unwrap();
    stage.change("b", Operation::Withdraw, 100).await.unwrap();
    forget(50).await;
    assert!(stage.get("b").await.is_some());
    forget(200).await;
    assert!(stage.get("b").await.is_none());
    let again = stage.submit(keyed("b"), 200).await.unwrap();
    assert!(again.is_new, "its key is forgotten, too");
}

async fn unknown_ids_are_told(stage: Stage) {
    for asked in [
        Operation::Withdraw,
        Operation::Extend(Extend::To(at(9))),
        Operation::Replay,
        Operation::Purge,
    ] {
        let answer = stage.change("nobody", asked, 0).await;
        assert_eq!(answer, Err(Error::NotFound(id_of("nobody"))));
    }
}

//! Handlers that take several events of one aggregate at once.

use std::sync::{Arc, Mutex};

use laneway::{Event, Failure};

use super::Fixture;
use super::support::{attempts, declare, event, number, settled};

type Batches = Arc<Mutex<Vec<(String, Vec<u64>)>>>;

fn note(batches: &Batches, events: &[Event]) -> Vec<u64> {
    let numbers: Vec<_> = events.iter().map(number).collect();
    let key = events[0].aggregate_id().as_str().to_owned();
    let same = |event: &Event| event.aggregate_id().as_str() == key;
    assert!(events.iter().all(same), "of one aggregate");
    let mut batches = batches.lock().expect("no panic");
    batches.push((key, numbers.clone()));
    numbers
}

pub(crate) async fn a_batch_has_events_of_one_aggregate_in_order<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let key = |number: u64| format!("key-{}", number % 3);
    let events: Vec<_> = (0..300).map(|number| event(&key(number), number)).collect();
    bus.publish_envelope_batch("orders", &events)
        .await
        .expect("published");
    let batches = Batches::default();
    let seen = batches.clone();
    let orders = bus
        .subscription("orders")
        .envelopes(8, move |events: Vec<Event>| {
            note(&seen, &events);
            // Lets others queue up behind.
            async {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    settled(&bus).await;
    assert_eq!(orders.stats().handled, 300);
    let batches = batches.lock().expect("no panic");
    assert!(
        batches
            .iter()
            .all(|(_, numbers)| (1..=8).contains(&numbers.len()))
    );
    assert!(batches.iter().any(|(_, numbers)| numbers.len() == 8));
    for of in 0..3 {
        let handled: Vec<_> = batches
            .iter()
            .filter(|(aggregate, _)| *aggregate == key(of))
            .flat_map(|(_, numbers)| numbers.clone())
            .collect();
        let published: Vec<_> = (0..300).filter(|number| number % 3 == of).collect();
        assert_eq!(handled, published, "in order, each once");
    }
}

pub(crate) async fn what_a_failed_batch_has_done_is_not_done_again<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let events: Vec<_> = (0..10).map(|number| event("a", number)).collect();
    bus.publish_envelope_batch("orders", &events)
        .await
        .expect("published");
    let batches = Batches::default();
    let seen = batches.clone();
    let orders = bus
        .subscription("orders")
        .retry(attempts(3))
        .envelopes(10, move |events: Vec<Event>| {
            let numbers = note(&seen, &events);
            let bad = numbers.iter().position(|number| *number == 4);
            async move {
                match bad {
                    Some(done) => Err(Failure::new("four is bad").after(done)),
                    None => Ok(()),
                }
            }
        })
        .await
        .expect("subscribed");
    settled(&bus).await;
    let batches = batches.lock().expect("no panic");
    let first = batches.iter().position(|(_, numbers)| numbers.contains(&4));
    let (before, from) = batches.split_at(first.expect("it was tried"));
    let before = before.iter().flat_map(|(_, numbers)| numbers.clone());
    let in_batch = from[0].1.iter().copied().take_while(|number| *number < 4);
    let done: Vec<_> = before.chain(in_batch).collect();
    assert_eq!(done, [0, 1, 2, 3], "once each");
    assert_eq!(from[1].1, [4], "alone");
    assert_eq!(from[2].1, [4]);
    let after: Vec<_> = from[3..].iter().flat_map(|(_, n)| n.clone()).collect();
    assert_eq!(after, [5, 6, 7, 8, 9]);
    let figures = orders.stats();
    assert_eq!((figures.handled, figures.failed), (9, 3));
    assert_eq!(figures.dead_lettered, 1);
}

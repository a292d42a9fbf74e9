//! Random things done to the store on disk and to the one in memory: both must hold the same.

use proptest::prelude::*;

use super::super::row::tests::any_record;
use super::*;
use crate::broker::embedded::memory::MemoryStore;

#[derive(Clone, Debug)]
enum Step {
    Append(u32, Vec<Record>),
    Trim(u32, u64),
    Save(u32, u64),
    Remove,
    Forget(u32),
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    let records = prop::collection::vec(any_record(), 1..6);
    prop_oneof![
        8 => (0..2_u32, records).prop_map(|(log, records)| Step::Append(log, records)),
        2 => (0..2_u32, 0..30_u64).prop_map(|(log, before)| Step::Trim(log, before)),
        2 => (0..2_u32, 0..30_u64).prop_map(|(log, low)| Step::Save(log, low)),
        1 => Just(Step::Remove),
        2 => (0..2_u32).prop_map(Step::Forget),
        2 => Just(Step::Reopen),
    ]
}

async fn compare(file: &FileStore, memory: &MemoryStore) {
    for partition in 0..2 {
        let on_disk = log(file, "orders", partition).await;
        let in_memory = memory.log(&name("orders"), partition).await.unwrap();
        let (span, expected) = (on_disk.span(), in_memory.span());
        assert_eq!(span, expected);
        assert_eq!(on_disk.bytes(), in_memory.bytes());
        for from in [0, span.start, u64::midpoint(span.start, span.end), span.end] {
            let read = on_disk.read(from, 20).await.unwrap();
            let expected = in_memory.read(from, 20).await.unwrap();
            let plain = |delivered: Vec<Delivered>| -> Vec<_> {
                let pairs = delivered.into_iter().map(|d| (d.offset, d.record));
                pairs.collect()
            };
            assert_eq!(plain(read), plain(expected));
        }
        assert_eq!(
            on_disk.position("g").await.unwrap(),
            in_memory.position("g").await.unwrap()
        );
    }
}

async fn run(steps: Vec<Step>) {
    let folder = tempfile::tempdir().unwrap();
    let mut file = store_with(folder.path(), "orders").await;
    let memory = MemoryStore::default();
    let topic = Topic::domain("orders").partitions(4).build().unwrap();
    for step in steps {
        let in_memory = |partition| memory.log(topic.name(), partition);
        match step {
            Step::Append(partition, records) => {
                let on_disk = log(&file, "orders", partition).await;
                let offset = on_disk.append(records.clone()).await.unwrap();
                let expected = in_memory(partition).await.unwrap();
                assert_eq!(offset, expected.append(records).await.unwrap());
            }
            Step::Trim(partition, before) => {
                let on_disk = log(&file, "orders", partition).await;
                on_disk.trim(before).await.unwrap();
                let expected = in_memory(partition).await.unwrap();
                expected.trim(before).await.unwrap();
            }
            Step::Save(partition, low) => {
                let expected = in_memory(partition).await.unwrap();
                let saved = expected.position("g").await.unwrap();
                let position = Position::at(low.max(saved.map_or(0, |saved| saved.low())));
                expected.save_position("g", &position).await.unwrap();
                let on_disk = log(&file, "orders", partition).await;
                on_disk.save_position("g", &position).await.unwrap();
            }
            Step::Remove => {
                file.remove_topic(topic.name()).await.unwrap();
                memory.remove_topic(topic.name()).await.unwrap();
                file.put_topic(&topic).await.unwrap();
            }
            Step::Forget(partition) => {
                let _ = log(&file, "orders", partition).await;
                log_state(&file, partition).lock().forget(usize::MAX);
            }
            Step::Reopen => {
                file.close().await.unwrap();
                file = open(folder.path()).await;
            }
        }
        compare(&file, &memory).await;
    }
    file.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_stores_on_disk_and_in_memory_agree(steps in prop::collection::vec(any_step(), 1..25)) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap()
            .block_on(run(steps));
    }
}

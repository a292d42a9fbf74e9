//! Random things done to the store on disk and to the one in memory: both must hold the same. On disk everything is
//! tiny: segments end after a few records, are dropped and moved together, and tables are written and merged.

use proptest::prelude::*;

use super::super::row::tests::any_record;
use super::*;
use crate::broker::embedded::memory::MemoryStore;

const LOGS: u32 = 5;

#[derive(Clone, Debug)]
enum Step {
    Append(u32, Vec<Record>),
    /// So many records of half a segment.
    Fill(u32, usize),
    /// Everything that is there goes.
    Empty(u32),
    Trim(u32, u64),
    Save(u32, u64),
    Remove,
    Forget(u32),
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    let records = prop::collection::vec(any_record(), 1..6);
    prop_oneof![
        3 => (0..LOGS, 1..12_usize).prop_map(|(log, count)| Step::Fill(log, count)),
        3 => (0..LOGS).prop_map(Step::Empty),
        8 => (0..LOGS, records).prop_map(|(log, records)| Step::Append(log, records)),
        2 => (0..LOGS, 0..30_u64).prop_map(|(log, before)| Step::Trim(log, before)),
        2 => (0..LOGS, 0..30_u64).prop_map(|(log, low)| Step::Save(log, low)),
        1 => Just(Step::Remove),
        2 => (0..LOGS).prop_map(Step::Forget),
        3 => Just(Step::Reopen),
    ]
}

async fn compare(file: &FileStore, memory: &MemoryStore) {
    for partition in 0..LOGS {
        let on_disk = log(file, "orders", partition).await;
        let in_memory = memory.log(&name("orders"), partition).await.unwrap();
        let (span, expected) = (on_disk.span(), in_memory.span());
        assert_eq!(span, expected);
        assert_eq!(on_disk.bytes(), in_memory.bytes());
        for from in [0, u64::midpoint(span.start, span.end), span.end] {
            // However much is read at once.
            let read = read_all(&on_disk, from).await.unwrap();
            let expected = read_all(&in_memory, from).await.unwrap();
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
    let tiny = async || {
        let store = FileStore::open(folder.path(), FileLimits::tiny()).await;
        store.unwrap()
    };
    let mut file = tiny().await;
    let memory = MemoryStore::default();
    let topic = Topic::domain("orders").partitions(LOGS).build().unwrap();
    file.put_topic(&topic).await.unwrap();
    for step in steps {
        let in_memory = |partition| memory.log(topic.name(), partition);
        match step {
            Step::Append(partition, records) => {
                let on_disk = log(&file, "orders", partition).await;
                let offset = on_disk.append(records.clone()).await.unwrap();
                let expected = in_memory(partition).await.unwrap();
                assert_eq!(offset, expected.append(records).await.unwrap());
            }
            Step::Fill(partition, count) => {
                let record = Record {
                    payload: vec![3; 1 << 10].into(),
                    ..Record::default()
                };
                for _ in 0..count {
                    let on_disk = log(&file, "orders", partition).await;
                    on_disk.append(vec![record.clone()]).await.unwrap();
                    let expected = in_memory(partition).await.unwrap();
                    expected.append(vec![record.clone()]).await.unwrap();
                }
            }
            Step::Empty(partition) => {
                let on_disk = log(&file, "orders", partition).await;
                on_disk.trim(on_disk.span().end).await.unwrap();
                let expected = in_memory(partition).await.unwrap();
                expected.trim(expected.span().end).await.unwrap();
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
                file = tiny().await;
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

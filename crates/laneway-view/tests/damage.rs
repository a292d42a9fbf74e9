//! A view after crashes and damage: as of some commit, or told apart and set aside.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use laneway_cluster::apply::{Identity, Shard, Stop, Table};
use laneway_view::{Error, View};
use proptest::prelude::*;

use support::{Log, Step, at, compare, id, identity, open};

/// A log with many changes and bodies that are large enough that the engine makes files.
fn long_log() -> Log {
    let mut log = Log::new();
    let mut random = 7_u32;
    let mut next = move |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from((random >> 16) % below).unwrap()
    };
    for number in 0..400_u32 {
        if number % 2 == 0 {
            let id = laneway_delay::MessageId::new(format!("large-{number}")).unwrap();
            // As it is, so that the engine cannot make it smaller.
            let body: Vec<u8> = (0..60_000).map(|_| next(256)).collect();
            let body = body.into();
            log.submit(&id, at(u64::from(number)), "a", body);
        }
        let (kind, id, number) = (next(20), next(10), next(256));
        let row = log.row(Step { kind, id, number });
        log.fact(vec![row]);
    }
    log
}

/// Applies a whole log, with a commit after every third record.
fn apply_all(shard: &mut Shard<View>, log: &Log) {
    apply_and_tell(shard, log, || {});
}

/// The same, and something after each commit.
fn apply_and_tell(shard: &mut Shard<View>, log: &Log, committed: impl Fn()) {
    for (index, (offset, bytes)) in log.records.iter().enumerate() {
        shard.apply(*offset, bytes).unwrap();
        if index % 3 == 0 {
            shard.table().commit(shard.head()).unwrap();
            committed();
        }
    }
}

/// Opens what is left of a view, and goes on. Whatever it says must be right.
fn survives(directory: &Path, log: &Log) {
    let (view, head) = View::open(directory, &identity()).unwrap();
    let shard = match head {
        Some(head) => Shard::resume(head, view),
        None => Ok(Shard::new(identity(), view)),
    };
    match shard {
        Ok(mut shard) => {
            for (offset, bytes) in &log.records {
                if *offset >= shard.head().next {
                    shard.apply(*offset, bytes).unwrap();
                }
            }
            if shard.table().failure().is_none() {
                compare(&shard, log);
            }
        }
        Err(stop) => assert_eq!(stop, Stop::OtherRows),
    }
}

const DIRECTORY: &str = "LANEWAY_TEST_VIEW";

/// What the next test kills. By itself it does nothing.
#[test]
fn writer_that_is_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let log = long_log();
    let (view, _) = View::open(Path::new(&directory), &identity()).unwrap();
    let mut shard = Shard::new(identity(), view);
    println!("begins");
    apply_and_tell(&mut shard, &log, || println!("has committed"));
}

#[test]
fn a_view_whose_process_is_killed_is_as_of_some_commit() {
    let log = long_log();
    let mut resumed = 0;
    for round in 0..12_u64 {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("view");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_that_is_killed", "--nocapture"])
            .env(DIRECTORY, &directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        // Some are killed before anything is committed, and some have to wait for that.
        let awaited = if round < 6 { "begins" } else { "has committed" };
        assert!(lines.any(|line| line.unwrap().ends_with(awaited)));
        std::thread::sleep(Duration::from_millis(round * round * 4));
        child.kill().unwrap();
        child.wait().unwrap();
        // A killed process loses nothing that it has handed to the system.
        let (shard, head) = open(&directory, &log);
        compare(&shard, &log);
        resumed += u32::from(head.is_some());
        assert!(!folder.path().join("view.aside-1").exists());
    }
    assert!(resumed > 3, "{resumed} of 12 had committed anything");
}

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, into);
        } else {
            into.push(path);
        }
    }
    into.sort();
}

/// Copies a view. What is at the end of a journal and was never written stays a hole.
fn copy(from: &Path, to: &Path) {
    let mut all = Vec::new();
    files(from, &mut all);
    for path in all {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let bytes = fs::read(&path).unwrap();
        let kept = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
        fs::write(&target, &bytes[..kept]).unwrap();
        let file = fs::File::options().write(true).open(&target).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
}

struct Written {
    log: Log,
    folder: tempfile::TempDir,
}

fn written() -> &'static Written {
    static WRITTEN: std::sync::OnceLock<Written> = std::sync::OnceLock::new();
    WRITTEN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let log = long_log();
        let (view, _) = View::open(&folder.path().join("view"), &identity()).unwrap();
        let mut shard = Shard::new(identity(), view);
        apply_all(&mut shard, &log);
        Written { log, folder }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A power cut: pages of the last journal never came to the disk.
    #[test]
    fn a_torn_journal_takes_the_view_back(place in any::<prop::sample::Index>(), pages in 1..20_usize) {
        let Written { log, folder } = written();
        let copied = tempfile::tempdir().unwrap();
        let directory = copied.path().join("view");
        copy(&folder.path().join("view"), &directory);
        let mut all = Vec::new();
        files(&directory, &mut all);
        all.retain(|path| path.extension().is_some_and(|extension| extension == "jnl"));
        let last = all.last().unwrap();
        let bytes = fs::read(last).unwrap();
        let whole = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        let at = place.index(whole) / 4096 * 4096;
        let file = fs::File::options().write(true).open(last).unwrap();
        file.write_all_at(&vec![0; pages * 4096], at as u64).unwrap();
        survives(&directory, log);
    }

    #[test]
    fn a_flipped_byte_is_found_or_does_not_matter(
        file in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        bit in 0..8,
    ) {
        let Written { log, folder } = written();
        let copied = tempfile::tempdir().unwrap();
        let directory = copied.path().join("view");
        copy(&folder.path().join("view"), &directory);
        let mut all = Vec::new();
        files(&directory, &mut all);
        let path = file.get(&all);
        let mut bytes = fs::read(path).unwrap();
        let whole = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
        if whole > 0 {
            let at = place.index(whole);
            bytes[at] ^= 1_u8 << bit;
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
            survives(&directory, log);
        }
    }
}

#[test]
fn a_view_of_another_log_is_set_aside_and_two_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    for topic in 1..=4_u8 {
        let identity = Identity {
            topic: topic.to_string(),
            ..identity()
        };
        let (view, head) = View::open(&directory, &identity).unwrap();
        assert_eq!(head, None);
        let shard = Shard::new(identity, view);
        shard.table().commit(shard.head()).unwrap();
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["view", "view.aside-2", "view.aside-3"]);
    // It is as it was.
    let aside = folder.path().join("view.aside-3");
    let third = Identity {
        topic: "3".to_owned(),
        ..identity()
    };
    assert!(View::open(&aside, &third).unwrap().1.is_some());
}

#[test]
fn a_view_of_another_format_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    let log = long_log();
    let (shard, _) = open(&directory, &log);
    shard.table().commit(shard.head()).unwrap();
    drop(shard);
    let said = "laneway-view 2 identity 0000000000000007 commit 0";
    let sum = laneway_disk::checksum(0, said.as_bytes());
    fs::write(
        directory.join("store"),
        format!("{said} checksum {sum:08x}\n"),
    )
    .unwrap();
    let (shard, head) = open(&directory, &log);
    assert_eq!(head, None);
    compare(&shard, &log);
    assert!(folder.path().join("view.aside-1").is_dir());
}

#[test]
fn a_view_that_is_in_use_is_not_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    let (_view, _) = View::open(&directory, &identity()).unwrap();
    let error = View::open(&directory, &identity()).unwrap_err();
    assert!(
        matches!(error, Error::Disk(laneway_disk::Error::InUse { .. })),
        "{error}"
    );
    assert!(!folder.path().join("view.aside-1").exists());
}

#[test]
fn what_is_set_aside_is_closed_for_readers_too() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    let log = long_log();
    let (shard, _) = open(&directory, &log);
    let reader = shard.table().reader();
    assert!(reader.get(&id(1)).is_ok());
    shard.into_table().set_aside(&"a test").unwrap();
    assert!(matches!(reader.get(&id(1)), Err(Error::Closed)));
    assert!(folder.path().join("view.aside-1").is_dir());
    let (shard, head) = open(&directory, &log);
    assert_eq!(head, None);
    compare(&shard, &log);
}

#[test]
fn a_row_that_cannot_be_read_is_no_row_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    // More than the engine keeps in memory.
    let mut log = long_log();
    let body = bytes::Bytes::copy_from_slice(&log.records[1].1);
    for number in 0..400_u32 {
        let id = laneway_delay::MessageId::new(format!("more-{number}")).unwrap();
        log.submit(&id, at(5), "a", body.clone());
    }
    let (view, _) = View::open(&directory, &identity()).unwrap();
    let mut shard = Shard::new(identity(), view);
    apply_all(&mut shard, &log);
    drop(shard);
    let (shard, _) = open(&directory, &log);
    let mut all = Vec::new();
    files(&directory, &mut all);
    all.retain(|path| path.parent().unwrap().ends_with("1/tables"));
    assert!(!all.is_empty(), "the engine has made no files");
    for path in all {
        let length = fs::metadata(&path).unwrap().len();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&vec![0xa5; usize::try_from(length).unwrap()], 0)
            .unwrap();
    }
    let rows: Vec<_> = log.memory.table().iter().collect();
    let lost = rows.iter().find(|(id, _)| shard.table().get(id).is_none());
    let (lost, _) = lost.expect("a row must be lost");
    let failure = shard.table().failure().expect("a failure is told");
    assert!(!failure.to_string().is_empty());
    // Nothing is believed or written any more.
    assert!(shard.table().reader().get(lost).is_err());
    assert!(shard.table().commit(shard.head()).is_err());
}

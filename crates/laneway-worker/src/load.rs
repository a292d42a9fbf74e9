//! How busy the machine is, from 0 to 1.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// What was sampled last.
#[derive(Debug, Default)]
pub(crate) struct Load {
    cpu: AtomicU32,
    memory: AtomicU32,
    /// The counters of the processors at the last sample.
    before: Mutex<Option<Ticks>>,
}

/// Time of all processors since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    total: u64,
}

impl Load {
    /// Reads the kernel's figures. What cannot be read stays as it was. The files are made up by the kernel while they are
    /// read: nothing waits for a disk.
    pub(crate) fn sample(&self) {
        if let Ok(stat) = std::fs::read_to_string("/proc/stat")
            && let Some(ticks) = ticks(&stat)
        {
            let before = self.before.lock().replace(ticks);
            if let Some(busy) = before.and_then(|before| busy(before, ticks)) {
                self.cpu.store(busy.to_bits(), Ordering::Relaxed);
            }
        }
        if let Ok(meminfo) = std::fs::read_to_string("/proc/meminfo")
            && let Some(used) = used(&meminfo)
        {
            self.memory.store(used.to_bits(), Ordering::Relaxed);
        }
    }

    pub(crate) fn cpu(&self) -> f32 {
        f32::from_bits(self.cpu.load(Ordering::Relaxed))
    }

    pub(crate) fn memory(&self) -> f32 {
        f32::from_bits(self.memory.load(Ordering::Relaxed))
    }
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal. Guests are counted in user already.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = fields.get(3)?.saturating_add(*fields.get(4)?);
    let total = fields
        .iter()
        .fold(0, |sum: u64, field| sum.saturating_add(*field));
    Some(Ticks { idle, total })
}

fn busy(before: Ticks, now: Ticks) -> Option<f32> {
    let total = now.total.checked_sub(before.total)?;
    let idle = now.idle.saturating_sub(before.idle).min(total);
    (total > 0).then(|| part(total - idle, total))
}

fn used(meminfo: &str) -> Option<f32> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let total = field("MemTotal:")?;
    let available = field("MemAvailable:")?.min(total);
    (total > 0).then(|| part(total - available, total))
}

#[expect(clippy::cast_possible_truncation, reason = "a part of one")]
fn part(of: u64, total: u64) -> f32 {
    (of as f64 / total as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_what_was_not_idle_since_the_last_sample() {
        let before = ticks("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1").unwrap();
        assert_eq!((before.idle, before.total), (800, 1_000));
        let now = ticks("cpu  150 0 100 725 125 0 0 0 50 0\n").unwrap();
        assert_eq!(busy(before, now), Some(0.5));
        assert_eq!(busy(now, now), None);
        assert_eq!(ticks("intr 5"), None);
        let memory = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   250 kB\n";
        assert_eq!(used(memory), Some(0.75));
        assert_eq!(used("MemTotal: x"), None);
    }

    #[test]
    fn this_machine_can_be_sampled() {
        let load = Load::default();
        load.sample();
        assert!((0.0..=1.0).contains(&load.cpu()));
        assert!(load.memory() > 0.0);
    }
}

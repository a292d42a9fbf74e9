//! Bytes on their way to a worker.
//!
//! Credit counts attempts, whatever their size: thousands of large bodies in one stream would keep a ping behind them until the worker
//! looks dead, and leave no room for what is more urgent. So bytes are counted, too. Behind every so many of them goes a *mark*:
//! a ping in the order of the frames, whose pong says that everything before it has arrived.

use std::collections::VecDeque;

/// No more attempts for a worker that has so many bytes before it.
const MOST: u64 = 4 << 20;

/// A mark goes behind so many bytes.
const MARK_EVERY: u64 = 128 << 10;

/// Numbers of marks have this bit; those of other pings have not.
const MARK: u64 = 1 << 63;

/// Whether a ping is a mark.
pub(super) const fn is_mark(number: u64) -> bool {
    number & MARK != 0
}

/// What is on its way over one stream.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Of attempts that a worker was chosen for, and that are not sent yet.
    chosen: u64,
    /// All that were ever sent.
    sent: u64,
    arrived: u64,
    last: u64,
    /// How much was sent before each mark.
    marks: VecDeque<(u64, u64)>,
}

impl InFlight {
    pub(super) const fn is_full(&self) -> bool {
        self.chosen + (self.sent - self.arrived) >= MOST
    }

    /// A worker was chosen for an attempt.
    pub(super) const fn choose(&mut self, bytes: u64) {
        self.chosen += bytes;
    }

    /// It does not get it after all.
    pub(super) const fn give_back(&mut self, bytes: u64) {
        self.chosen = self.chosen.saturating_sub(bytes);
    }

    /// It was sent. The mark to be sent behind it, if it is time for one.
    pub(super) fn sent(&mut self, bytes: u64) -> Option<u64> {
        self.give_back(bytes);
        self.sent += bytes;
        let marked = self.marks.back().map_or(self.arrived, |(_, sent)| *sent);
        if self.sent - marked < MARK_EVERY {
            return None;
        }
        self.last += 1;
        let mark = MARK | self.last;
        self.marks.push_back((mark, self.sent));
        Some(mark)
    }

    /// The pong of a mark came.
    pub(super) fn arrived(&mut self, mark: u64) {
        while let Some((_, sent)) = self.marks.pop_front_if(|(first, _)| *first <= mark) {
            self.arrived = sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_arrived_is_bounded_and_what_has_makes_room() {
        let mut flight = InFlight::default();
        let mut marks = Vec::new();
        let mut count = 0;
        while !flight.is_full() {
            flight.choose(100_000);
            marks.extend(flight.sent(100_000));
            count += 1;
        }
        assert_eq!(
            count, 42,
            "as many as fit into 4 MiB, and the one that fills it"
        );
        assert_eq!(marks.len(), 21, "a mark behind every other one");
        assert!(marks.iter().all(|mark| is_mark(*mark)));
        flight.arrived(marks[0]);
        assert!(!flight.is_full());
        flight.choose(300_000);
        assert!(flight.is_full(), "what is chosen counts, too");
        flight.give_back(300_000);
        flight.arrived(marks[20]);
        flight.arrived(marks[3]);
        assert_eq!((flight.sent, flight.arrived), (4_200_000, 4_200_000));
        flight.choose(100 << 20);
        assert!(flight.is_full());
        let mark = flight.sent(100 << 20).unwrap();
        flight.arrived(mark);
        assert!(!flight.is_full());
    }

    #[test]
    fn small_ones_need_no_mark_and_never_fill_it_for_ever() {
        let mut flight = InFlight::default();
        let mut marks = 0;
        for _ in 0..100_000 {
            flight.choose(1_000);
            if let Some(mark) = flight.sent(1_000) {
                marks += 1;
                flight.arrived(mark);
            }
            assert!(!flight.is_full());
        }
        assert!((700..800).contains(&marks), "{marks}");
    }
}

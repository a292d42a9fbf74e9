//! Letters count only if their writer owned the partition: fences among them see to that.
//!
//! A member that was cut off can have a letter on its way: in the buffer of a client, or in a process
//! that is frozen. It arrives after another member has taken the partition over and has handled the
//! event. A commit of such a member is refused by the broker; a letter is a plain record, which no broker
//! refuses.
//!
//! So every owner of a partition writes a fence among the letters, with its epoch, before it handles
//! anything, and reads what stands before the fence. Of what stands behind it, letters of earlier owners do
//! not count: none of them was settled. (An owner settles an event when its letter is durable, and a
//! commit of it that the broker took came before the next owner, and so before the fence of that one.)
//! Hence the event came again, and was handled by an owner that could not know of the letter.
//!
//! Epochs can begin anew: when a topic is made again with other tools, or when a broker forgets a group. An
//! owner that finds a fence of a higher epoch, and whose lease is confirmed *after that*, knows that this is
//! so; its second fence replaces the first one whatever the numbers say.

use std::collections::HashMap;

use super::headers as letter_headers;
use super::topic::Letter;
use crate::headers::Headers;
use crate::planted::planted;
use crate::record::Record;
use crate::time::now_ms;

/// A fence: letters for this group and partition behind it are by this owner or a later one, or do not
/// count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bus) struct Fence {
    pub(in crate::bus) group: String,
    pub(in crate::bus) partition: u64,
    pub(in crate::bus) epoch: u64,
    /// Whether it counts although there is one of a higher epoch.
    pub(in crate::bus) anew: bool,
}

impl Fence {
    /// The fence that has these headers, if it is one.
    pub(in crate::bus) fn read(headers: &Headers) -> Option<Self> {
        let anew = match letter_headers::control(headers)? {
            letter_headers::FENCE => false,
            letter_headers::FENCE_ANEW => true,
            _ => return None,
        };
        Some(Self {
            group: headers.get_str(letter_headers::GROUP)?.to_owned(),
            partition: letter_headers::get_u64(headers, letter_headers::PARTITION)?,
            epoch: letter_headers::get_u64(headers, letter_headers::EPOCH)?,
            anew,
        })
    }

    pub(in crate::bus) fn record(&self) -> Record {
        let mut headers = Headers::new();
        let control = if self.anew {
            letter_headers::FENCE_ANEW
        } else {
            letter_headers::FENCE
        };
        letter_headers::put_control(&mut headers, control);
        letter_headers::put(&mut headers, letter_headers::GROUP, &self.group);
        letter_headers::put(
            &mut headers,
            letter_headers::PARTITION,
            &self.partition.to_string(),
        );
        letter_headers::put(&mut headers, letter_headers::EPOCH, &self.epoch.to_string());
        Record {
            headers,
            timestamp_ms: now_ms(),
            ..Record::default()
        }
    }
}

/// The fences that stand, by group and partition: the epoch of each, and its place among the letters.
#[derive(Debug, Default)]
pub(in crate::bus) struct Fences(HashMap<(String, u64), (u64, u64)>);

impl Fences {
    /// Learns of a fence at a place. Answers the place of the one that is of no use any more: an older
    /// one, or this one itself.
    pub(in crate::bus) fn add(&mut self, fence: Fence, place: u64) -> Option<u64> {
        let key = (fence.group, fence.partition);
        match self.0.get(&key) {
            Some((epoch, _)) if *epoch > fence.epoch && !fence.anew => Some(place),
            _ => {
                let before = self.0.insert(key, (fence.epoch, place));
                before.map(|(_, place)| place)
            }
        }
    }

    /// Whether a letter that stands here was written by an owner that had lost the partition.
    pub(in crate::bus) fn shut_out(&self, letter: &Letter) -> bool {
        let Some(epoch) = letter.epoch else {
            // Written before letters had one.
            return false;
        };
        let fence = self.epoch(&letter.group, letter.origin.0);
        fence.is_some_and(|fence| fence > epoch) && !planted("A11")
    }

    /// The epoch of the fence that stands for a group and partition.
    pub(in crate::bus) fn epoch(&self, group: &str, partition: u64) -> Option<u64> {
        let fence = self.0.get(&(group.to_owned(), partition));
        fence.map(|(epoch, _)| *epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(epoch: u64, anew: bool) -> Fence {
        Fence {
            group: "g".into(),
            partition: 3,
            epoch,
            anew,
        }
    }

    #[test]
    fn a_fence_reads_back_as_it_was_written() {
        for anew in [false, true] {
            let record = fence(7, anew).record();
            assert_eq!(Fence::read(&record.headers), Some(fence(7, anew)));
        }
        assert_eq!(Fence::read(&Headers::new()), None);
    }

    #[test]
    fn the_fence_of_the_latest_owner_stands_whatever_comes_late() {
        let mut fences = Fences::default();
        assert_eq!(fences.add(fence(2, false), 10), None);
        assert_eq!(fences.add(fence(3, false), 11), Some(10));
        assert_eq!(fences.add(fence(2, false), 12), Some(12), "it is late");
        assert_eq!(fences.epoch("g", 3), Some(3));
        assert_eq!(fences.epoch("other", 3), None);
        assert_eq!(
            fences.add(fence(1, true), 13),
            Some(11),
            "epochs began anew"
        );
        assert_eq!(fences.epoch("g", 3), Some(1));
    }
}

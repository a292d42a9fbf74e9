//! What a child writes down, one line for each thing, and what must hold.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::file::mount::Cut;
use crate::life::now;
use crate::verdict::Verdict;

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// It was accepted, and is due then (in milliseconds).
    Accepted(u64),
    /// Somebody is about to ask for a change: whether it happened is known when it is answered.
    Asked,
    /// It was taken back.
    Withdrawn,
    /// It is due then instead.
    Extended(u64),
    /// The answer was no.
    Refused,
    /// A delivery starts.
    Started,
}

/// Where it is written.
pub(super) struct Pen {
    file: File,
}

impl Pen {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file })
    }

    /// Writes down things that happened, all in one piece.
    pub(super) fn write<'a>(
        &self,
        events: impl IntoIterator<Item = (&'a str, What)>,
    ) -> Result<()> {
        let now = now();
        let mut lines = String::new();
        for (id, what) in events {
            let (letter, due) = match what {
                What::Accepted(due) => ('A', due),
                What::Asked => ('a', 0),
                What::Withdrawn => ('W', 0),
                What::Extended(due) => ('E', due),
                What::Refused => ('R', 0),
                What::Started => ('S', 0),
            };
            writeln!(lines, "{now} {letter} {id} {due}")?;
        }
        Ok((&self.file).write_all(lines.as_bytes())?)
    }
}

/// What is known of a message.
#[derive(Debug, Default)]
struct Known {
    due: Option<u64>,
    /// Asked to be changed, and not answered.
    is_open: bool,
    is_withdrawn: bool,
    started: u64,
}

/// Judges the story, with cuts of the power and the ends of the processes that they hit. What was told in between
/// does not count. What started before a cut was done was delivered, though, and may have been noted.
pub(super) fn judge(path: &Path, cuts: &[(Cut, u64)]) -> Result<Verdict> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    let mut messages: HashMap<&str, Known> = HashMap::new();
    let (mut early, mut after_withdraw, mut withdrawn, mut extended) = (0, 0, 0, 0);
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(at), Some(letter), Some(id), Some(due)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            // The last line of a life may be torn.
            continue;
        };
        let (Ok(at), Ok(due)) = (at.parse::<u64>(), due.parse::<u64>()) else {
            continue;
        };
        let is_of_the_dead = cuts.iter().any(|(cut, killed)| {
            let from = if letter == "S" { cut.done } else { cut.began };
            (from..*killed).contains(&at)
        });
        if is_of_the_dead && letter != "a" {
            continue;
        }
        let known = messages.entry(id).or_default();
        match letter {
            "A" => known.due = Some(due),
            "a" => known.is_open = true,
            "W" => {
                known.is_open = false;
                known.is_withdrawn = true;
                withdrawn += 1;
            }
            "E" => {
                known.is_open = false;
                known.due = Some(due);
                extended += 1;
            }
            "R" => known.is_open = false,
            _ => {
                known.started += 1;
                after_withdraw += u64::from(known.is_withdrawn);
                early += u64::from(known.due.is_some_and(|due| at / 1_000_000 < due));
            }
        }
    }
    let accepted = || messages.values().filter(|known| known.due.is_some());
    let lost = accepted()
        .filter(|known| known.started == 0 && !known.is_withdrawn && !known.is_open)
        .count();
    let repeated = accepted().filter(|known| known.started > 1).count();
    Ok(Verdict::new()
        .count("messages", accepted().count() as u64)
        .count("withdrawn", withdrawn)
        .count("extended", extended)
        .count("started more than once", repeated as u64)
        .must_be("lost", lost as u64, 0)
        .must_be("early", early, 0)
        .must_be("delivered after a withdraw", after_withdraw, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(events: &[(&str, What)]) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("story");
        let pen = Pen::open(&path).unwrap();
        pen.write(events.iter().copied()).unwrap();
        judge(&path, &[]).unwrap()
    }

    #[test]
    fn a_delivery_while_the_power_is_being_cut_counts_and_a_later_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("story");
        fs::write(&path, "10 A a 0\n10 A b 0\n25 S a 0\n35 S b 0\n25 A c 0\n").unwrap();
        let cut = Cut {
            began: 20,
            done: 30,
        };
        let verdict = judge(&path, &[(cut, 40)]).unwrap();
        // Only `b` is lost: nobody was told of `c` in time.
        let expected = Verdict::new()
            .count("messages", 2)
            .count("withdrawn", 0)
            .count("extended", 0)
            .count("started more than once", 0)
            .must_be("lost", 1, 0)
            .must_be("early", 0, 0)
            .must_be("delivered after a withdraw", 0, 0);
        assert_eq!(verdict, expected);
    }

    #[test]
    fn a_good_story_passes() {
        let past = What::Accepted(1);
        let good = [
            ("a", past),
            ("b", past),
            ("b", What::Asked),
            ("b", What::Withdrawn),
            ("c", past),
            ("c", What::Asked),
            ("a", What::Started),
            ("a", What::Started),
        ];
        assert!(verdict(&good).passes());
    }

    #[test]
    fn what_must_not_be_is_found() {
        let past = What::Accepted(1);
        assert!(!verdict(&[("a", past)]).passes(), "lost");
        let withdrawn = [("a", past), ("a", What::Withdrawn), ("a", What::Started)];
        assert!(!verdict(&withdrawn).passes(), "after a withdraw");
        let early = [("a", What::Accepted(u64::MAX)), ("a", What::Started)];
        assert!(!verdict(&early).passes(), "early");
        let moved = [
            ("a", past),
            ("a", What::Extended(u64::MAX)),
            ("a", What::Started),
        ];
        assert!(!verdict(&moved).passes(), "before its new time");
        let refused = [("a", past), ("a", What::Asked), ("a", What::Refused)];
        assert!(!verdict(&refused).passes(), "a no is an answer");
    }
}

//! The file format: a line per record, made to be read by people and to survive a kill.
//!
//! ```text
//! 1763200000000000001 submitted order-7 3 ;
//! 1763200000000000002 started order-7 3 attempt 1 owner 12 epoch 4 ;
//! ```
//!
//! The semicolon ends a record: a line without it was torn and doesn't count. White space, control
//! characters, `%` and `;` in keys are percent-encoded; an empty key is a lone `%`.

use std::fmt::{self, Write as _};
use std::io::{self, BufRead};

use super::event::{Attempt, Event, MessageId, Outcome, Record};

/// A history file that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading failed.
    #[error("reading the history failed: {0}")]
    Io(#[from] io::Error),
    /// A complete line that no history wrote.
    #[error(
        "line {line} is no history record: {text:?}; give files written by `History::append_to`"
    )]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
}

/// Reads the records of one file (or of several, chained), in the order in which they stand.
/// Torn lines are skipped.
///
/// # Errors
/// Reading failed, or a complete line is not a record.
pub fn read(mut from: impl BufRead) -> Result<Vec<Record>, ReadError> {
    let mut records = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if from.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        // Not `lines()`: a torn line may end inside a character.
        let text = String::from_utf8_lossy(&bytes);
        let Some(whole) = text.trim_ascii_end().strip_suffix(" ;") else {
            continue;
        };
        records.push(parse(whole).ok_or_else(|| ReadError::Malformed {
            line,
            text: whole.to_owned(),
        })?);
    }
    Ok(records)
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ;", self.at, self.event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted(message) => write!(f, "submitted {message}"),
            Self::Acked(message) => write!(f, "acked {message}"),
            Self::Refused(message) => write!(f, "refused {message}"),
            Self::Started(message, attempt) => {
                let Attempt {
                    number,
                    owner,
                    epoch,
                } = attempt;
                write!(
                    f,
                    "started {message} attempt {number} owner {owner} epoch {epoch}"
                )
            }
            Self::Finished {
                message,
                owner,
                outcome,
            } => write!(f, "{outcome} {message} owner {owner}"),
            Self::Settled(message) => write!(f, "settled {message}"),
            Self::Crashed { owner } => write!(f, "crashed owner {owner}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::DeadLettered => "dead-lettered",
            Self::Parked => "parked",
            Self::Abandoned => "abandoned",
        })
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            f.write_char('%')?;
        }
        for character in self.key.chars() {
            if character.is_whitespace() || character.is_control() || matches!(character, '%' | ';')
            {
                let mut buffer = [0; 4];
                for byte in character.encode_utf8(&mut buffer).bytes() {
                    write!(f, "%{byte:02x}")?;
                }
            } else {
                f.write_char(character)?;
            }
        }
        write!(f, " {}", self.seq)
    }
}

fn parse(line: &str) -> Option<Record> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let verb = words.next()?;
    let event = if verb == "crashed" {
        let owner = labelled(&mut words, "owner")?;
        Event::Crashed { owner }
    } else {
        let message = MessageId::new(decode(words.next()?)?, words.next()?.parse().ok()?);
        match verb {
            "submitted" => Event::Submitted(message),
            "acked" => Event::Acked(message),
            "refused" => Event::Refused(message),
            "settled" => Event::Settled(message),
            "started" => Event::Started(
                message,
                Attempt {
                    number: labelled(&mut words, "attempt")?,
                    owner: labelled(&mut words, "owner")?,
                    epoch: labelled(&mut words, "epoch")?,
                },
            ),
            _ => Event::Finished {
                message,
                outcome: match verb {
                    "done" => Outcome::Done,
                    "failed" => Outcome::Failed,
                    "dead-lettered" => Outcome::DeadLettered,
                    "parked" => Outcome::Parked,
                    "abandoned" => Outcome::Abandoned,
                    _ => return None,
                },
                owner: labelled(&mut words, "owner")?,
            },
        }
    };
    words.next().is_none().then_some(Record { at, event })
}

fn labelled<'a, T: std::str::FromStr>(
    words: &mut impl Iterator<Item = &'a str>,
    label: &str,
) -> Option<T> {
    (words.next()? == label).then_some(())?;
    words.next()?.parse().ok()
}

fn decode(key: &str) -> Option<String> {
    if key == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            rest = tail;
            bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_event() -> impl Strategy<Value = Event> {
        let message = (".{0,12}", any::<u64>()).prop_map(|(key, seq)| MessageId::new(key, seq));
        let outcome = prop::sample::select(vec![
            Outcome::Done,
            Outcome::Failed,
            Outcome::DeadLettered,
            Outcome::Parked,
            Outcome::Abandoned,
        ]);
        (message, outcome, any::<(u32, u64, u64)>(), 0..7).prop_map(
            |(message, outcome, (number, owner, epoch), which)| match which {
                0 => Event::Submitted(message),
                1 => Event::Acked(message),
                2 => Event::Refused(message),
                3 => Event::Started(
                    message,
                    Attempt {
                        number,
                        owner,
                        epoch,
                    },
                ),
                4 => Event::Finished {
                    message,
                    owner,
                    outcome,
                },
                5 => Event::Settled(message),
                _ => Event::Crashed { owner },
            },
        )
    }

    proptest! {
        #[test]
        fn every_record_reads_back(event in any_event(), at in any::<u64>()) {
            let record = Record { at, event };
            let line = format!("{record}\n");
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert_eq!(read(line.as_bytes())?, [record]);
        }

        #[test]
        fn a_record_torn_anywhere_is_skipped_or_whole(event in any_event(), cut in any::<prop::sample::Index>()) {
            let record = Record { at: 7, event };
            let line = record.to_string();
            let cut = cut.index(line.len());
            prop_assert_eq!(read(&line.as_bytes()[..cut])?, []);
        }

        #[test]
        fn bytes_from_anywhere_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(bytes.as_slice());
        }
    }

    #[test]
    fn a_foreign_line_is_named() {
        let error = read(&b"7 acked k 1 ;\n8 eaten k 1 ;\n"[..])
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(error.contains("8 eaten k 1"), "{error}");
    }
}

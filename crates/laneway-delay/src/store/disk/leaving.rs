//! Messages that leave for a cluster: reading all of them, and the note that they do.
//!
//! The note is the file `move` beside the tables. As long as it is there, [`DiskStore::open`] refuses the directory: what
//! was handed over must not fire here as well. [`DiskStore::open_to_move`] opens it all the same, for the one command that moves.

use std::fmt;
use std::fs;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use super::codec::{self, KeyUse};
use super::tables::{Table, damaged, failed, opened};
use super::{DiskStore, Sizes, keys};
use crate::store::DueKey;
use crate::{Error, Message, MessageId, StateName, Timestamp};

/// The name of the note.
const NOTE: &str = "move";

/// Its first line.
const TITLE: &str = "laneway-move 1";

/// How far messages have come on their way to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStage {
    /// Some may be there.
    Begun,
    /// All of them are there.
    HandedOver,
    /// The cluster has them, and goes on with them.
    Moved,
}

impl MoveStage {
    const ALL: [Self; 3] = [Self::Begun, Self::HandedOver, Self::Moved];

    const fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::HandedOver => "handed-over",
            Self::Moved => "moved",
        }
    }
}

/// What a directory says about where its messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveNote {
    /// How far they have come.
    pub stage: MoveStage,
    /// The address of the broker, without passwords, for people.
    pub to: String,
    /// The name of the cluster.
    pub cluster: String,
    /// What the broker calls this very log.
    pub log: String,
}

impl fmt::Display for MoveNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            MoveStage::Begun | MoveStage::HandedOver => write!(
                f,
                "they are being moved to {}: run `laneway move` again to finish that, or `laneway move --abort` if \
                 nothing was handed over yet",
                self.to
            ),
            MoveStage::Moved => write!(
                f,
                "they were moved to {}, and are delivered from there: choose another directory",
                self.to
            ),
        }
    }
}

impl MoveNote {
    fn encode(&self) -> String {
        let Self {
            stage,
            to,
            cluster,
            log,
        } = self;
        let line = |text: &str| text.replace(['\r', '\n'], " ");
        format!(
            "{TITLE}\nstage: {}\nto: {}\ncluster: {}\nlog: {}\n",
            stage.name(),
            line(to),
            line(cluster),
            line(log)
        )
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return None;
        }
        let mut next = |name: &str| {
            let line = lines.next()?.strip_prefix(name)?;
            line.strip_prefix(": ").map(str::to_owned)
        };
        let stage = next("stage")?;
        Some(Self {
            stage: MoveStage::ALL.into_iter().find(|it| it.name() == stage)?,
            to: next("to")?,
            cluster: next("cluster")?,
            log: next("log")?,
        })
    }

    /// The note of a directory, if it has one.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it cannot be read.
    pub fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let path = directory.join(NOTE);
        let damaged = |detail: String| Error::Damaged {
            what: path.display().to_string(),
            detail,
        };
        match fs::read_to_string(&path) {
            Ok(text) => match Self::decode(&text) {
                Some(note) => Ok(Some(note)),
                None => Err(damaged("it is not what was written".to_owned())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(damaged(error.to_string())),
        }
    }
}

/// That the messages of a directory have not left.
pub(super) fn expect_here(directory: &Path) -> Result<(), Error> {
    match MoveNote::read(directory)? {
        None => Ok(()),
        Some(note) => Err(Error::Moved {
            directory: directory.display().to_string(),
            what: note.to_string(),
        }),
    }
}

/// A message on its way to somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The message. One that an earlier process may have sent is in doubt.
    pub message: Message,
    /// [What was submitted](crate::Submission::fingerprint), as a number.
    pub fingerprint: u64,
}

/// An idempotency key that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingKey {
    /// The key.
    pub key: String,
    /// When it was used.
    pub at: Timestamp,
    /// The message that it was used for.
    pub id: MessageId,
    /// When that was due.
    pub due: Timestamp,
    /// [What was submitted](crate::Submission::fingerprint), as a number.
    pub fingerprint: u64,
}

impl DiskStore {
    /// Opens a directory whose messages leave, or have left. Nothing may be claimed in it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_to_move(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let disk = Box::new(laneway_disk::RealDisk);
        Self::open_anyway(directory.as_ref(), disk, Sizes::default()).await
    }

    /// The number that was drawn when the store was made.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.shared.identity
    }

    /// Notes where the messages go; `None`: they stay. Durable when it answers.
    ///
    /// # Errors
    /// When the system says no.
    pub fn note_move(&self, note: Option<&MoveNote>) -> Result<(), Error> {
        let directory = self.shared.commits.path();
        match note {
            Some(note) => laneway_disk::replace_file(directory, NOTE, note.encode().as_bytes())?,
            None => laneway_disk::remove_file(directory, NOTE)?,
        }
        Ok(())
    }

    /// The next messages of a state, and behind which place others follow.
    ///
    /// # Errors
    /// When one of them cannot be read, too.
    pub async fn leaving(
        &self,
        state: StateName,
        after: Option<DueKey>,
        limit: usize,
    ) -> Result<(Vec<Leaving>, Option<DueKey>), Error> {
        let from = after.map_or(DueKey::FIRST, DueKey::next);
        self.blocking(move |shared| {
            // Nothing waits before the floor, and what has fired there would be walked over.
            let from = match state {
                StateName::Scheduled => from.max(shared.contents().floor),
                _ => from,
            };
            let until = DueKey::at(Timestamp::MAX);
            let (mut found, mut last, mut bytes) = (Vec::new(), None, 0);
            let mut broken = None;
            shared.with_tables(|tables| {
                shared.walk(tables, state, from, until, |due_key, row| {
                    let decoded = row.and_then(|row| {
                        let table = match state {
                            StateName::Scheduled | StateName::Firing => Table::Due,
                            _ => Table::Ended,
                        };
                        bytes += row.len();
                        let unreadable = |_| damaged(table, &keys::due_key(due_key));
                        codec::decode_with_fingerprint(row).map_err(unreadable)
                    });
                    match decoded {
                        Ok((message, fingerprint)) => {
                            let message = match state {
                                StateName::Scheduled => shared.doubted(due_key, message),
                                _ => message,
                            };
                            found.push(Leaving {
                                message,
                                fingerprint,
                            });
                        }
                        Err(error) => {
                            broken = Some(error);
                            return ControlFlow::Break(());
                        }
                    }
                    if found.len() < limit && bytes < shared.sizes.page_bytes {
                        return ControlFlow::Continue(());
                    }
                    last = Some(due_key);
                    ControlFlow::Break(())
                })
            })?;
            broken.map_or(Ok((found, last)), Err)
        })
        .await
    }

    /// The next idempotency keys behind one, by their age; none if there are no more.
    ///
    /// # Errors
    /// When one of them cannot be read, too.
    pub async fn leaving_keys(
        &self,
        after: Option<&LeavingKey>,
        limit: usize,
    ) -> Result<Vec<LeavingKey>, Error> {
        let from = match after {
            Some(after) => Bound::Excluded(keys::used_at(after.at, &after.key)),
            None => Bound::Included(keys::used_from(Timestamp::from_millis(0))),
        };
        self.blocking(move |shared| {
            let until = Bound::Included(keys::used_from(Timestamp::MAX));
            shared.with_tables(|tables| {
                let mut found = Vec::new();
                for row in tables.keys.range((from, until)).take(limit) {
                    let (row, _) = row
                        .into_inner()
                        .map_err(|error| failed(Table::Keys, error))?;
                    let broken = || damaged(Table::Keys, &row);
                    let (at, key) = keys::read_used_at(&row).ok_or_else(broken)?;
                    let name = keys::used(key);
                    let used = tables
                        .keys
                        .get(&name)
                        .map_err(|error| failed(Table::Keys, error))?;
                    let used = used.ok_or_else(broken)?;
                    let used = opened(Table::Keys, &name, &used, shared.identity)?;
                    let used = KeyUse::decode(used).map_err(|_| broken())?;
                    found.push(LeavingKey {
                        key: key.to_owned(),
                        at,
                        id: used.id,
                        due: used.due,
                        fingerprint: used.fingerprint,
                    });
                }
                Ok(found)
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{Draft, Store};
    use crate::{Submission, Target, When};

    fn note() -> MoveNote {
        MoveNote {
            stage: MoveStage::HandedOver,
            to: "nats://127.0.0.1:4222".to_owned(),
            cluster: "shop".to_owned(),
            log: "2026-11-18T10:00:00Z".to_owned(),
        }
    }

    #[test]
    fn the_fixture_of_a_note_is_read() {
        let text = fixtures::text("move-1.txt", || note().encode());
        assert_eq!(MoveNote::decode(&text), Some(note()));
        assert_eq!(note().encode(), text);
        assert_eq!(MoveNote::decode("laneway-move 2\n"), None);
    }

    fn draft(number: u64) -> Draft {
        let target = Target::callback("http://localhost/");
        let submission = Submission::new("t", When::After(Duration::ZERO), target);
        Draft {
            submission: submission.idempotency_key(format!("key {number}")),
            due: Timestamp::from_millis(1_000 + number),
            now: Timestamp::from_millis(1_000),
        }
    }

    #[tokio::test]
    async fn a_directory_whose_messages_leave_is_read_as_a_whole_and_opened_by_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let store = DiskStore::open(directory.path()).await.unwrap();
        let answers = store.submit((0..10).map(draft).collect()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        store.close().await.unwrap();

        let store = DiskStore::open_to_move(directory.path()).await.unwrap();
        store.note_move(Some(&note())).unwrap();
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let page = store.leaving(StateName::Scheduled, after, 3).await.unwrap();
            ids.extend(page.0.iter().map(|leaving| leaving.message.id.clone()));
            after = page.1;
            if after.is_none() {
                break;
            }
        }
        let accepted: Vec<_> = answers.into_iter().flatten().map(|it| it.id).collect();
        assert_eq!(ids, accepted);
        let first = store.leaving_keys(None, 4).await.unwrap();
        let rest = store.leaving_keys(first.last(), 100).await.unwrap();
        let used: Vec<_> = first.iter().chain(&rest).map(|used| &used.id).collect();
        assert_eq!(used, accepted.iter().collect::<Vec<_>>());
        let print = draft(3).submission.fingerprint();
        assert_eq!((&*first[3].key, first[3].fingerprint), ("key 3", print));
        store.close().await.unwrap();

        let refused = DiskStore::open(directory.path()).await.unwrap_err();
        assert!(matches!(refused, Error::Moved { .. }), "{refused}");
        assert!(refused.to_string().contains("laneway move"), "{refused}");
        let store = DiskStore::open_to_move(directory.path()).await.unwrap();
        store.note_move(None).unwrap();
        store.close().await.unwrap();
        DiskStore::open(directory.path()).await.unwrap();
    }
}

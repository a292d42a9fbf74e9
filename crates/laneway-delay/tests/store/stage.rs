//! The stores, and what tests do with them.

use std::sync::{Arc, Mutex};

use laneway_delay::store::{
    Change, Claim, DiskStore, Draft, DueIndex, DueKey, MemoryStore, Operation, Outcome, Scheduled,
    Settlement, Sizes, Store,
};
use laneway_delay::{
    Accepted, Error, Message, MessageId, Query, Submission, Target, Timestamp, Undelivered, When,
};

/// A store, with its directory if it has one.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) due_index: Arc<Notes>,
    _folder: Option<tempfile::TempDir>,
}

/// Notes who takes a place.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) admitted: Mutex<Vec<Scheduled>>,
}

impl DueIndex for Notes {
    fn admit(&self, waiting: &[Scheduled]) {
        self.admitted.lock().unwrap().extend_from_slice(waiting);
    }

    fn floor(&self) -> DueKey {
        DueKey::FIRST
    }
}

impl Stage {
    pub(crate) fn in_memory() -> Self {
        Self::with(Arc::new(MemoryStore::new()), None)
    }

    pub(crate) async fn on_disk() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = DiskStore::open(folder.path()).await.unwrap();
        Self::with(Arc::new(store), Some(folder))
    }

    /// On disk, with bounds that all act all the time.
    pub(crate) async fn tiny() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Box::new(laneway_disk::RealDisk);
        let store = DiskStore::open_on(folder.path(), disk, Sizes::TINY).await;
        Self::with(Arc::new(store.unwrap()), Some(folder))
    }

    fn with(store: Arc<dyn Store>, folder: Option<tempfile::TempDir>) -> Self {
        let due_index = Arc::new(Notes::default());
        store.attach(due_index.clone());
        Self {
            store,
            due_index,
            _folder: folder,
        }
    }

    pub(crate) async fn submit(&self, submission: Submission, now: u64) -> Result<Accepted, Error> {
        let answers = self.store.submit(vec![draft(submission, now)]).await;
        answers.into_iter().next().unwrap()
    }

    pub(crate) async fn change(
        &self,
        id: &str,
        what: Operation,
        now: u64,
    ) -> Result<Message, Error> {
        let change = Change {
            id: id_of(id),
            now: at(now),
            what,
        };
        let answers = self.store.change(vec![change]).await;
        answers.into_iter().next().unwrap()
    }

    pub(crate) async fn get(&self, id: &str) -> Option<Message> {
        self.store.get(&id_of(id)).await.unwrap()
    }

    /// All who stand in line.
    pub(crate) async fn waiting(&self) -> Vec<Scheduled> {
        let until = DueKey::at(Timestamp::MAX);
        self.store.scan(DueKey::FIRST, until, 10_000).await.unwrap()
    }

    /// All pages of a list.
    pub(crate) async fn list(&self, query: Query) -> Vec<Message> {
        let (mut messages, mut query) = (Vec::new(), query);
        loop {
            let page = self.store.list(&query).await.unwrap();
            messages.extend(page.messages);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return messages,
            }
        }
    }

    /// Forgets all that is older.
    pub(crate) async fn forget(&self, keys_before: u64, ended_before: u64) {
        let (keys, ended) = (at(keys_before), at(ended_before));
        while self.store.forget(keys, ended).await.unwrap() {}
    }

    pub(crate) async fn claim(&self, waiting: Vec<Scheduled>, now: u64) -> Vec<Claim> {
        self.store.claim(waiting, at(now)).await.unwrap()
    }

    pub(crate) async fn settle(&self, claim: Claim, outcome: Outcome, now: u64) {
        let settlement = Settlement {
            claim,
            now: at(now),
            outcome,
        };
        self.store.settle(vec![settlement]).await.unwrap();
    }
}

pub(crate) fn draft(submission: Submission, now: u64) -> Draft {
    let due = match submission.when {
        When::At(due) => due,
        When::After(delay) => at(now) + delay,
    };
    Draft {
        submission,
        due,
        now: at(now),
    }
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn id_of(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

pub(crate) fn message(id: &str, due: u64) -> Submission {
    let target = Target::callback("http://localhost/");
    Submission::new("t", When::At(at(due)), target)
        .id(id_of(id))
        .payload("a payload")
}

pub(crate) fn failed() -> Outcome {
    Outcome::Failed(Undelivered::retry("no"), laneway_delay::Schedule::default())
}

/// Runs a check on every store.
macro_rules! on_every_store {
    ($($name:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stage::Stage::in_memory()).await;
            })*
        }
        mod disk {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stage::Stage::on_disk().await).await;
            })*
        }
        mod tiny {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stage::Stage::tiny().await).await;
            })*
        }
    };
}

pub(crate) use on_every_store;

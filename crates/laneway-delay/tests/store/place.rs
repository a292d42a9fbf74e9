//! The stores, and what tests do with them.

use std::sync::{Arc, Mutex};

use laneway_delay::store::{
    Asked, Change, Claim, DiskStore, Draft, Line, MemoryStore, Outcome, Place, Settlement, Store,
    Waiting,
};
use laneway_delay::{
    Accepted, Error, Message, MessageId, Submission, Target, Timestamp, Undelivered, When,
};

/// A store, with its directory if it has one.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) line: Arc<Notes>,
    _folder: Option<tempfile::TempDir>,
}

/// Notes who takes a place.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) admitted: Mutex<Vec<Waiting>>,
}

impl Line for Notes {
    fn admit(&self, waiting: &[Waiting]) {
        self.admitted.lock().unwrap().extend_from_slice(waiting);
    }

    fn floor(&self) -> Place {
        Place::FIRST
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

    fn with(store: Arc<dyn Store>, folder: Option<tempfile::TempDir>) -> Self {
        let line = Arc::new(Notes::default());
        store.attach(line.clone());
        Self {
            store,
            line,
            _folder: folder,
        }
    }

    pub(crate) async fn submit(&self, submission: Submission, now: u64) -> Result<Accepted, Error> {
        let answers = self.store.submit(vec![draft(submission, now)]).await;
        answers.into_iter().next().unwrap()
    }

    pub(crate) async fn change(&self, id: &str, what: Asked, now: u64) -> Result<Message, Error> {
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
    pub(crate) async fn waiting(&self) -> Vec<Waiting> {
        let until = Place::at(Timestamp::MAX);
        self.store.scan(Place::FIRST, until, 10_000).await.unwrap()
    }

    pub(crate) async fn claim(&self, waiting: Vec<Waiting>, now: u64) -> Vec<Claim> {
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
    Submission::new("t", When::At(at(due)), target).id(id_of(id))
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
                super::$name(crate::place::Stage::in_memory()).await;
            })*
        }
        mod disk {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::place::Stage::on_disk().await).await;
            })*
        }
    };
}

pub(crate) use on_every_store;

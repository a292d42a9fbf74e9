//! What clients asked, and what they were told.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::http::Answer;

/// Since 1970.
pub(super) type Millis = u64;

/// The clock of everything here.
pub(super) fn now() -> Millis {
    crate::life::now() / 1_000_000
}

/// How a client names its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Nothing,
    Id,
    Key,
    Request,
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Submit,
    Extend,
    Withdraw,
    Stop,
    LookUp,
}

/// One question about one message, with its answer.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) what: What,
    /// Which of the receives was asked.
    pub(super) to: usize,
    pub(super) sent: Millis,
    pub(super) answered: Millis,
    /// 0: no answer.
    pub(super) status: u16,
    /// What the answer says: an id, when it is due, a state.
    pub(super) id: Option<String>,
    pub(super) due: Option<Millis>,
    pub(super) state: String,
    pub(super) is_duplicate: bool,
    pub(super) detail: String,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.answered.saturating_sub(self.sent);
        let (sent, what, to, status) = (self.sent, self.what, self.to + 1, self.status);
        write!(
            f,
            "{sent} {what:?} to receive-{to}: {status} after {took} ms"
        )?;
        if let Some(id) = &self.id {
            write!(f, ", {id}")?;
        }
        if let Some(due) = self.due {
            write!(f, ", due {due}")?;
        }
        let duplicate = if self.is_duplicate { "duplicate" } else { "" };
        write!(f, " {duplicate} {} {}", self.state, self.detail)
    }
}

impl Asked {
    /// A question whose answer, if there is one, is as a single request has it.
    pub(super) fn new(what: What, to: usize, sent: Millis, answer: Option<&Answer>) -> Self {
        let status = answer.map_or(0, |answer| answer.status);
        let body = answer.map(|answer| &answer.body);
        Self::of(what, to, sent, status, body.unwrap_or(&Value::Null))
    }

    /// The same with an answer that is one of a batch.
    pub(super) fn of(what: What, to: usize, sent: Millis, status: u16, body: &Value) -> Self {
        let text = |field: &str| body[field].as_str().map(str::to_owned);
        let due: Option<laneway::Timestamp> = text("due").and_then(|due| due.parse().ok());
        Self {
            what,
            to,
            sent,
            answered: now(),
            status,
            id: text("id"),
            due: due.and_then(|due| Millis::try_from(due.as_millisecond()).ok()),
            state: text("state").unwrap_or_default(),
            is_duplicate: body["duplicate"] == true,
            detail: text("detail").unwrap_or_default(),
        }
    }

    pub(super) fn is_yes(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether nothing is known after it.
    pub(super) fn is_error(&self) -> bool {
        self.status == 0 || self.status >= 500
    }
}

/// A message of a client.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) given: Given,
    pub(super) delay: Millis,
    pub(super) asked: Vec<Asked>,
}

impl Message {
    /// The answer that accepted it.
    pub(super) fn accepted(&self) -> Option<&Asked> {
        let mut submits = self.asked.iter().filter(|asked| asked.what == What::Submit);
        submits.find(|asked| asked.is_yes())
    }
}

/// All messages of all clients, by their tags.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Vec<Message>>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Vec<Message>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new message; answers its tag.
    pub(super) fn add(&self, given: Given, delay: Millis) -> usize {
        let mut messages = self.lock();
        messages.push(Message {
            given,
            delay,
            asked: Vec::new(),
        });
        messages.len() - 1
    }

    pub(super) fn note(&self, tag: usize, asked: Asked) {
        if let Some(message) = self.lock().get_mut(tag) {
            message.asked.push(asked);
        }
    }

    pub(super) fn all(&self) -> Vec<Message> {
        self.lock().clone()
    }
}

//! What the routes ask for: messages taken, moved, taken back and found, wherever they are kept.
//!
//! [`Messages`] is all that HTTP, metrics and readiness know of delayed messages. On one machine
//! [`laneway_delay::Delays`] is behind it.
//!
//! | file | what it is |
//! |---|---|
//! | `delays` | [`Messages`] on one machine |
//! | `error` | [`Error`]: what can go wrong, on one machine and on many |
//! | `list` | [`List`] and [`Listed`]: what is listed, and what was found |

mod delays;
mod error;
mod list;

use std::fmt;

use laneway_delay::{
    Accepted, BoxFuture, Counts, Extend, Health, Message, MessageId, Submission, Timestamp,
    Withdraw,
};

pub(crate) use error::Error;
pub(crate) use list::{List, Listed};

/// Delayed messages, as the server hands them in and asks for them. Answers to many are in the order of the questions, each
/// on its own.
pub(crate) trait Messages: fmt::Debug + Send + Sync {
    /// Takes messages. Those that are accepted are durable when this resolves.
    ///
    /// The request id is drawn by a proxy and is the same for all tries of one request.
    fn submit<'a>(
        &'a self,
        submissions: Vec<Submission>,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Accepted, Error>>>;

    /// Makes messages due later. The answers may leave out the payloads. The request id is as for [`submit`](Self::submit).
    fn extend<'a>(
        &'a self,
        extends: Vec<(MessageId, Extend)>,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>>;

    /// Takes messages back. The request id is as for [`submit`](Self::submit).
    fn withdraw<'a>(
        &'a self,
        ids: Vec<MessageId>,
        how: Withdraw,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>>;

    /// A message, with its history.
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Message, Error>>;

    /// Messages by state, topic and time, a page at a time.
    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Listed, Error>>;

    /// Makes a new message of a dead one, due now.
    fn replay<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Accepted, Error>>;

    /// Forgets a message that has ended.
    fn purge<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<(), Error>>;

    /// Forgets all dead messages, or those of a topic; answers how many.
    fn purge_dead<'a>(&'a self, topic: Option<&'a str>) -> BoxFuture<'a, Result<u64, Error>>;

    /// How many messages are in which state, by topic. Cheap.
    fn counts(&self) -> Counts;

    /// How many messages became dead letters since the process started.
    fn deaths(&self) -> u64;

    /// How often a task behind this panicked and was started again.
    fn panics(&self) -> u64;

    /// What delays are counted from.
    fn now(&self) -> Timestamp;

    /// How well it is.
    fn report(&self) -> Health;

    /// What else keeps the roles of this process from their work.
    fn lacks(&self) -> Vec<String> {
        Vec::new()
    }

    /// What else people should look at, although all work is done.
    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }
}

impl dyn Messages {
    /// Takes one message.
    pub(crate) async fn submit_one(
        &self,
        submission: Submission,
        request_id: Option<&str>,
    ) -> Result<Accepted, Error> {
        only(self.submit(vec![submission], request_id).await)
    }

    /// Makes one message due later.
    pub(crate) async fn extend_one(
        &self,
        id: MessageId,
        extend: Extend,
        request_id: Option<&str>,
    ) -> Result<Message, Error> {
        only(self.extend(vec![(id, extend)], request_id).await)
    }

    /// Takes one message back.
    pub(crate) async fn withdraw_one(
        &self,
        id: MessageId,
        how: Withdraw,
        request_id: Option<&str>,
    ) -> Result<Message, Error> {
        only(self.withdraw(vec![id], how, request_id).await)
    }
}

fn only<T>(answers: Vec<Result<T, Error>>) -> Result<T, Error> {
    let answer = answers.into_iter().next();
    answer.unwrap_or(Err(Error::CLOSED))
}

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, RuntimeClock, SystemClock};
use crate::engine::{Core, Options};
use crate::store::{Asked, Change, DiskStore, Draft, MemoryStore, Store};
use crate::{
    Accepted, Counts, Error, Extend, Message, MessageId, Page, Query, Sinks, StateName, Submission,
    Target, Timestamp,
};

/// Delayed messages: hand them in, move them, take them back, ask for them.
///
/// Cheap to clone. It works until it is [closed](Self::close), also when all handles are dropped.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use laneway_delay::{BoxFuture, Delays, Deliver, Firing, Options, Sinks, StateName};
/// use laneway_delay::{Submission, Target, Undelivered, When};
///
/// struct Print;
///
/// impl Deliver for Print {
///     fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
///         println!("{} is due", firing.message.id);
///         Box::pin(std::future::ready(Ok(())))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), laneway_delay::Error> {
/// let sinks = Sinks { callbacks: Some(Arc::new(Print)), ..Sinks::default() };
/// let delays = Delays::in_memory(sinks, Options::default())?;
///
/// let target = Target::callback("http://localhost/reminders");
/// let submission = Submission::new("reminders", When::After(Duration::from_secs(60)), target);
/// let accepted = delays.submit_one(submission).await?;
/// let message = delays.withdraw(&accepted.id).await?;
/// assert_eq!(StateName::from(message.record.state()), StateName::Withdrawn);
/// delays.close(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Delays {
    core: Arc<Core>,
}

impl std::fmt::Debug for Delays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delays")
            .field("sinks", &self.core.sinks)
            .finish_non_exhaustive()
    }
}

impl Delays {
    /// Messages in memory, gone with the process. Time is the runtime's, which tests can pause.
    ///
    /// # Errors
    /// When the options cannot be used.
    pub fn in_memory(sinks: Sinks, options: Options) -> Result<Self, Error> {
        let clock = Arc::new(RuntimeClock::start());
        Self::start(Arc::new(MemoryStore::new()), clock, sinks, options)
    }

    /// Messages in a directory, which is made if it is not there. They survive the process and the machine.
    ///
    /// # Errors
    /// When the options cannot be used, or the directory cannot be opened.
    pub async fn open(
        directory: impl AsRef<Path>,
        sinks: Sinks,
        options: Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let store = Arc::new(DiskStore::open(directory).await?);
        Self::start(store, Arc::new(SystemClock::default()), sinks, options)
    }

    /// Messages in a store, by a clock. Within a tokio runtime.
    ///
    /// # Errors
    /// When the options cannot be used.
    pub fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        sinks: Sinks,
        options: Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let core = Core::start(store, clock, sinks, options);
        Ok(Self { core })
    }

    /// Takes messages, each on its own. Those that are accepted are durable when this resolves.
    ///
    /// # Errors
    /// Each on its own: [`Error::Invalid`], [`Error::IdTaken`], [`Error::KeyReused`], or what is wrong
    /// with the store.
    pub async fn submit(&self, submissions: Vec<Submission>) -> Vec<Result<Accepted, Error>> {
        let now = self.core.clock.now();
        let mut drafts = Vec::with_capacity(submissions.len());
        let refused: Vec<Option<Error>> = submissions
            .into_iter()
            .map(|submission| match self.draft(submission, now) {
                Ok(draft) => {
                    drafts.push(draft);
                    None
                }
                Err(error) => Some(error),
            })
            .collect();
        let mut answers = self.core.store.submit(drafts).await.into_iter();
        let answer = |refused: Option<Error>| match refused {
            Some(error) => Err(error),
            None => answers.next().unwrap_or(Err(Error::Closed)),
        };
        refused.into_iter().map(answer).collect()
    }

    /// Takes one message. It is durable when this resolves.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub async fn submit_one(&self, submission: Submission) -> Result<Accepted, Error> {
        let answers = self.submit(vec![submission]).await;
        answers.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    fn draft(&self, submission: Submission, now: Timestamp) -> Result<Draft, Error> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        submission.check()?;
        let is_served = match submission.target {
            Target::Callback(_) => self.core.sinks.callbacks.is_some(),
            Target::Bus(_) => self.core.sinks.bus.is_some(),
        };
        if !is_served {
            let problem = "nobody serves this kind of target here; use the other kind";
            return Err(Error::invalid("target", problem));
        }
        let due = submission.when.due(now);
        self.check_delay(due, now)?;
        Ok(Draft {
            submission,
            due,
            now,
        })
    }

    fn check_delay(&self, due: Timestamp, now: Timestamp) -> Result<(), Error> {
        match self.core.options.max_delay {
            Some(most) if due.since(now) > most => {
                let problem = format!(
                    "it is {} s away, and {} s are the most here; choose an earlier moment",
                    due.since(now).as_secs(),
                    most.as_secs()
                );
                Err(Error::invalid("due", problem))
            }
            _ => Ok(()),
        }
    }

    /// Makes a message due later. The answer is final: it will not fire before.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] with the state that won.
    pub async fn extend(&self, id: &MessageId, extend: Extend) -> Result<Message, Error> {
        let answers = self.extend_all(vec![(id.clone(), extend)]).await;
        answers.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    /// Makes messages due later, each on its own.
    ///
    /// # Errors
    /// Each on its own, as [`extend`](Self::extend).
    pub async fn extend_all(
        &self,
        extends: Vec<(MessageId, Extend)>,
    ) -> Vec<Result<Message, Error>> {
        let asked = extends.into_iter().map(|(id, extend)| {
            if let Extend::To(due) = extend
                && let Err(error) = self.check_delay(due, self.core.clock.now())
            {
                return Err(error);
            }
            Ok((id, Asked::Extend(extend)))
        });
        let asked: Vec<_> = asked.collect();
        let good = asked.iter().filter_map(|asked| asked.as_ref().ok());
        let mut answers = self.change(good.cloned()).await.into_iter();
        let answer = |asked: Result<_, Error>| {
            asked.and_then(|_| answers.next().unwrap_or(Err(Error::Closed)))
        };
        asked.into_iter().map(answer).collect()
    }

    /// Takes a message back. The answer is final: after a yes no delivery starts.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] with the state that won.
    pub async fn withdraw(&self, id: &MessageId) -> Result<Message, Error> {
        self.change_one(id, Asked::Withdraw).await
    }

    /// Takes messages back, each on its own.
    ///
    /// # Errors
    /// Each on its own, as [`withdraw`](Self::withdraw).
    pub async fn withdraw_all(&self, ids: Vec<MessageId>) -> Vec<Result<Message, Error>> {
        let asked = ids.into_iter().map(|id| (id, Asked::Withdraw));
        self.change(asked).await
    }

    /// Makes a new message of a dead one, due now. The dead one is gone then.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] if it is not dead.
    pub async fn replay(&self, id: &MessageId) -> Result<Accepted, Error> {
        let message = self.change_one(id, Asked::Replay).await?;
        Ok(Accepted {
            id: message.id,
            due: message.record.due(),
            is_new: true,
        })
    }

    /// Forgets a message that has ended.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] if it has not ended.
    pub async fn purge(&self, id: &MessageId) -> Result<(), Error> {
        self.change_one(id, Asked::Purge).await.map(drop)
    }

    /// Forgets all dead messages, or those of a topic; answers how many.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub async fn purge_dead(&self, topic: Option<&str>) -> Result<u64, Error> {
        let mut query = Query {
            topic: topic.map(str::to_owned),
            limit: Query::MAX_LIMIT,
            ..Query::new(StateName::Dead)
        };
        let mut purged = 0;
        loop {
            let page = self.list(&query).await?;
            let ids = page.messages.into_iter().map(|message| message.id);
            let answers = self.change(ids.map(|id| (id, Asked::Purge))).await;
            for answer in answers {
                match answer {
                    Ok(_) => purged += 1,
                    // Somebody else was faster.
                    Err(Error::NotFound(_) | Error::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(purged),
            }
        }
    }

    async fn change_one(&self, id: &MessageId, what: Asked) -> Result<Message, Error> {
        let answers = self.change([(id.clone(), what)]).await;
        answers.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    async fn change(
        &self,
        asked: impl IntoIterator<Item = (MessageId, Asked)>,
    ) -> Vec<Result<Message, Error>> {
        let now = self.core.clock.now();
        let changes: Vec<_> = asked
            .into_iter()
            .map(|(id, what)| Change { id, now, what })
            .collect();
        if self.core.is_closed() {
            return changes.iter().map(|_| Err(Error::Closed)).collect();
        }
        self.core.store.change(changes).await
    }

    /// A message, with its history.
    ///
    /// # Errors
    /// [`Error::NotFound`], or what is wrong with the store.
    pub async fn get(&self, id: &MessageId) -> Result<Message, Error> {
        let found = self.core.store.get(id).await?;
        found.ok_or_else(|| Error::NotFound(id.clone()))
    }

    /// Messages by state, topic and time, a page at a time. Dead letters are those in
    /// [`StateName::Dead`].
    ///
    /// # Errors
    /// What is wrong with the store.
    pub async fn list(&self, query: &Query) -> Result<Page, Error> {
        self.core.store.list(query).await
    }

    /// How many messages are in which state, by topic. Cheap.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.store.counts()
    }

    /// What time it is here: what delays are counted from.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.core.clock.now()
    }

    /// Whether messages are taken; why not.
    ///
    /// # Errors
    /// When they are not.
    pub fn health(&self) -> Result<(), Error> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        self.core.store.health()
    }

    /// Stops firing, waits for attempts that run, and lets the store go. What did not end in time fires
    /// again when the store is opened the next time.
    ///
    /// # Errors
    /// What is wrong with the store; it is closed then all the same.
    pub async fn close(&self, deadline: Duration) -> Result<(), Error> {
        if !self.core.stop(deadline).await {
            tracing::warn!("attempts were still running; they come again");
        }
        self.core.store.close().await
    }
}

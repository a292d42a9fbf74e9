#[cfg(feature = "file")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "file")]
use crate::clock::SystemClock;
use crate::clock::{Clock, RuntimeClock};
use crate::engine::{Core, Options};
use crate::store::{Change, Draft, MemoryStore, Operation, Store};
#[cfg(feature = "file")]
use crate::store::{DiskStore, DueKey};
use crate::{
    Accepted, Counts, Error, Extend, Health, Message, MessageId, Page, Query, Sinks, StateName,
    Submission, Target, Timestamp, When, Withdraw,
};

/// A due time further in the past than this is a mistake: seconds that are taken for milliseconds are.
const LONG_AGO: Duration = Duration::from_hours(366 * 24);

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

/// The moment at which the last message of a store is due, or a later one. Which of them had a delay is not kept, so all count as if
/// they had.
#[cfg(feature = "file")]
async fn last_due(store: &dyn Store) -> Timestamp {
    let (mut due, mut after) = (0, Timestamp::LAST_DUE.as_millis());
    // Nothing tells the last one, but whether there is one from a moment on. A second more or less does not matter.
    while after - due > 1_000 {
        let middle = due + (after - due) / 2;
        let from = DueKey::at(Timestamp::from_millis(middle));
        match store.scan(from, DueKey::at(Timestamp::MAX), 1).await {
            Ok(found) if found.is_empty() => after = middle,
            Ok(found) => {
                let found = found.iter().map(|found| found.due_key.at.as_millis());
                due = found.fold(middle, u64::max);
                after = after.max(due);
            }
            // What cannot be read may be due at any time.
            Err(_) => break,
        }
    }
    Timestamp::from_millis(after)
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
    #[cfg(feature = "file")]
    pub async fn open(
        directory: impl AsRef<Path>,
        sinks: Sinks,
        options: Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let store = Arc::new(DiskStore::open(&directory).await?);
        let clock = SystemClock::kept_in(directory.as_ref(), options.clock_distrust);
        clock.rely(last_due(store.as_ref()).await);
        Self::start(store, Arc::new(clock), sinks, options)
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
        self.core.clock.kept().await;
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

    fn draft(&self, mut submission: Submission, now: Timestamp) -> Result<Draft, Error> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        submission.check()?;
        let sinks = &self.core.sinks;
        let is_served = match &mut submission.target {
            Target::Callback(callback) => match &sinks.callbacks {
                Some(callbacks) => callbacks.check(callback).map(|()| true)?,
                None => false,
            },
            Target::Bus(_) => sinks.bus.is_some(),
        };
        if !is_served {
            let problem = "this kind of target has no sink here; use the other kind";
            return Err(Error::invalid("target", problem));
        }
        if let (Target::Bus(_), Some(bus)) = (&submission.target, &sinks.bus)
            && let Some(problem) = bus.objection(&submission)
        {
            return Err(Error::invalid("payload", problem));
        }
        let due = match submission.when {
            When::After(delay) => {
                // Before it is counted: the clock keeps every delay in mind that it counts.
                Self::check_due(now + delay, now, self.core.options.max_delay)?;
                self.core.clock.due_after(delay)
            }
            When::At(due) => {
                Self::check_due(due, now, self.core.options.max_delay)?;
                due
            }
        };
        Ok(Draft {
            submission,
            due,
            now,
        })
    }

    /// Whether a message may be due then: not after the year 9998, not more than a year ago, and not further away than `most`.
    /// Submitting checks it, too.
    ///
    /// # Errors
    /// [`Error::Invalid`] of the field `due`.
    pub fn check_due(due: Timestamp, now: Timestamp, most: Option<Duration>) -> Result<(), Error> {
        if due > Timestamp::LAST_DUE {
            let problem = "it is after the year 9998; choose an earlier moment";
            return Err(Error::invalid("due", problem));
        }
        if now.since(due) > LONG_AGO {
            let problem = format!(
                "{due} is more than a year ago; if it is meant in seconds, give it in milliseconds"
            );
            return Err(Error::invalid("due", problem));
        }
        match most {
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
    /// [`Error::NotFound`], [`Error::Refused`] with the state that won, or [`Error::Invalid`] if it is further away
    /// than messages may be here.
    pub async fn extend(&self, id: &MessageId, extend: Extend) -> Result<Message, Error> {
        let answers = self.extend_all(vec![(id.clone(), extend)]).await;
        answers.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    /// Makes messages due later, each on its own. The answers may leave out the payloads.
    ///
    /// # Errors
    /// Each on its own, as [`extend`](Self::extend).
    pub async fn extend_all(
        &self,
        extends: Vec<(MessageId, Extend)>,
    ) -> Vec<Result<Message, Error>> {
        let now = self.core.clock.now();
        let most = match self.core.options.max_delay {
            Some(most) => (now + most).min(Timestamp::LAST_DUE),
            None => Timestamp::LAST_DUE,
        };
        let asked = extends.into_iter();
        self.change(asked.map(|(id, extend)| (id, Operation::ExtendUntil(extend, most))))
            .await
    }

    /// Takes a message back. The answer is final: after a yes no delivery starts, and none was made.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] with the state that won. A message is refused, too, that an attempt may
    /// have delivered without an answer: [`Withdraw::Stop`] ends it.
    pub async fn withdraw(&self, id: &MessageId) -> Result<Message, Error> {
        self.withdraw_with(id, Withdraw::Unsent).await
    }

    /// Takes a message back in one of two ways.
    ///
    /// ```
    /// # use laneway_delay::{Delays, Error, MessageId, Withdraw};
    /// # async fn cancel(delays: &Delays, id: &MessageId) -> Result<(), Error> {
    /// let message = delays.withdraw_with(id, Withdraw::Stop).await?;
    /// if message.record.is_in_doubt() {
    ///     println!("{id} is not tried again, and may have been delivered");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`withdraw`](Self::withdraw); [`Withdraw::Stop`] is refused only if the message has ended.
    pub async fn withdraw_with(&self, id: &MessageId, how: Withdraw) -> Result<Message, Error> {
        self.change_one(id, how.into()).await
    }

    /// Takes messages back, each on its own.
    ///
    /// # Errors
    /// Each on its own, as [`withdraw`](Self::withdraw).
    pub async fn withdraw_all(&self, ids: Vec<MessageId>) -> Vec<Result<Message, Error>> {
        self.withdraw_all_with(ids, Withdraw::Unsent).await
    }

    /// Takes messages back in one of two ways, each on its own.
    ///
    /// # Errors
    /// Each on its own, as [`withdraw_with`](Self::withdraw_with).
    pub async fn withdraw_all_with(
        &self,
        ids: Vec<MessageId>,
        how: Withdraw,
    ) -> Vec<Result<Message, Error>> {
        let asked = ids.into_iter().map(|id| (id, how.into()));
        self.change(asked).await
    }

    /// Makes a new message of a dead one, due now. The dead one is gone then.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] if it is not dead.
    pub async fn replay(&self, id: &MessageId) -> Result<Accepted, Error> {
        let message = self.change_one(id, Operation::Replay).await?;
        Ok(Accepted {
            id: message.id,
            due: message.record.due(),
            is_new: true,
            state: Some(StateName::Scheduled),
        })
    }

    /// Forgets a message that has ended.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Refused`] if it has not ended.
    pub async fn purge(&self, id: &MessageId) -> Result<(), Error> {
        self.change_one(id, Operation::Purge).await.map(drop)
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
            let answers = self.change(ids.map(|id| (id, Operation::Purge))).await;
            for answer in answers {
                match answer {
                    Ok(_) => purged += 1,
                    // Another caller was faster.
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

    async fn change_one(&self, id: &MessageId, what: Operation) -> Result<Message, Error> {
        let answers = self.change([(id.clone(), what)]).await;
        answers.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    async fn change(
        &self,
        asked: impl IntoIterator<Item = (MessageId, Operation)>,
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

    /// How many messages became dead letters since this was started.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.core.deaths.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How often one of the engine's own tasks panicked and was started again.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.core.panics.total()
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

    /// How well it is: whether messages are taken and delivered, what cannot be read, and whether the clock is
    /// believed.
    #[must_use]
    pub fn report(&self) -> Health {
        let mut health = Health::default();
        self.core.store.report(&mut health);
        if self.core.is_closed() {
            health.refuses = Some(Error::Closed);
            health.has_failed = false;
        }
        health.clock_ahead = self.core.clock.distrusted();
        health.panicked = self.core.panics.recent();
        health
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

#[cfg(all(test, feature = "file"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_of_all_due_times_is_found() {
        let delays = Delays::in_memory(Sinks::default(), Options::default()).expect("it starts");
        let store = delays.core.store.as_ref();
        assert!(last_due(store).await.as_millis() < 1_000);
        let now = delays.now();
        for days in [1, 400, 30] {
            let due = now + Duration::from_hours(days * 24);
            let submission = Submission::new("t", When::At(due), Target::bus("t", "a", "E"));
            let draft = Draft {
                submission,
                due,
                now,
            };
            store.submit(vec![draft]).await[0].as_ref().expect("taken");
        }
        let last = last_due(store).await;
        let off = last.since(now + Duration::from_hours(400 * 24));
        assert!(last > now + Duration::from_hours(399 * 24), "{last}");
        assert!(off <= Duration::from_secs(1), "{last}");
    }

    struct Nowhere;

    impl crate::Deliver for Nowhere {
        fn deliver(
            &self,
            _: crate::Firing,
        ) -> crate::BoxFuture<'_, Result<(), crate::Undelivered>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[tokio::test]
    async fn a_delay_may_be_as_long_as_the_longest() {
        let most = Duration::from_hours(1);
        let options = Options {
            max_delay: Some(most),
            ..Options::default()
        };
        let sinks = Sinks {
            callbacks: Some(Arc::new(Nowhere)),
            ..Sinks::default()
        };
        let delays = Delays::in_memory(sinks, options).expect("it starts");
        let submit = async |delay: Duration| {
            let target = Target::callback("http://localhost/");
            let submission = Submission::new("t", When::After(delay), target);
            delays.submit_one(submission).await
        };
        submit(most).await.expect("as long as may be");
        let longer = submit(most + Duration::from_millis(1)).await;
        assert!(matches!(longer, Err(Error::Invalid { .. })), "{longer:?}");
    }
}

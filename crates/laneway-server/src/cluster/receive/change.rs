//! What the owner of a message is asked to do with it.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use laneway_cluster::owner::Order;
use laneway_cluster::record::{Key, RequestDigest};
use laneway_delay::message::{Action, Reason};
use laneway_delay::{
    Accepted, Extend, Message, MessageId, Refusal, State, StateName, Timestamp, Withdraw,
};
use laneway_rpc::convert;
use laneway_rpc::proto::{self, reply, request};
use tokio::time::Instant;

use super::digest::Asked;
use super::missing::is_missing;
use super::{AT_ONCE, Receive, odd, unreadable};
use crate::cluster::owners::Replied;
use crate::messages::Error;

/// An extension by less is within all bounds, whatever the message: due times end in the year 9998.
const NEVER_TOO_FAR: Duration = Duration::from_hours(100 * 366 * 24);

impl Receive {
    pub(super) async fn look_up(&self, id: &MessageId) -> Result<Message, Error> {
        let since = Instant::now();
        let answer = self.look_up_once(id).await;
        if !is_missing(&answer) {
            return answer;
        }
        self.intake_read(id, since).await?;
        self.look_up_once(id).await
    }

    /// What the owner has under an id.
    async fn found(&self, id: &MessageId) -> Result<Option<proto::Message>, Error> {
        let what = request::What::LookUp(id.as_str().to_owned());
        let Replied { what, .. } = self.ask(id, what).await?;
        let reply::What::Found(found) = what else {
            return Err(odd(&what));
        };
        Ok(found.message)
    }

    /// The message that the id of a key stands for: one that was moved here from one machine has an id of its own.
    pub(super) async fn meant_by(&self, id: &MessageId) -> Result<MessageId, Error> {
        let found = self.found(id).await?;
        // One that was dead and is replayed has been tried.
        let alias = found.filter(|it| it.attempts == 0 && !it.replayed_as.is_empty());
        let meant = alias.and_then(|alias| MessageId::new(alias.replayed_as).ok());
        Ok(meant.unwrap_or_else(|| id.clone()))
    }

    async fn look_up_once(&self, id: &MessageId) -> Result<Message, Error> {
        let there = self.found(id).await?;
        let there = there.filter(|message| !convert::is_gone(message));
        let message = there.ok_or_else(|| laneway_delay::Error::NotFound(id.clone()))?;
        convert::restore(message).map_err(|invalid| unreadable(&invalid))
    }

    pub(super) async fn extend_all(
        &self,
        extends: Vec<(MessageId, Extend)>,
        request: Option<&str>,
    ) -> Vec<Result<Message, Error>> {
        let changing = extends.into_iter().enumerate();
        let changing = changing.map(|(index, (id, extend))| {
            let request = request.map(|request| (request, index));
            self.extend_one(id, extend, request)
        });
        stream::iter(changing).buffered(AT_ONCE).collect().await
    }

    async fn extend_one(
        &self,
        id: MessageId,
        extend: Extend,
        request: Option<(&str, usize)>,
    ) -> Result<Message, Error> {
        let now = self.clock.now();
        let most = self.max_delay.map_or(Timestamp::LAST_DUE, |most| {
            (now + most).min(Timestamp::LAST_DUE)
        });
        let order = match extend {
            Extend::To(due) => {
                check_most(due, now, most)?;
                Order::ExtendTo(due)
            }
            Extend::By(by) => {
                // A limit of this server, which the owner does not know.
                if self.max_delay.is_some() || by > NEVER_TOO_FAR {
                    let message = self.look_up(&id).await?;
                    check_most(message.record.due() + by, now, most)?;
                }
                Order::ExtendBy(by)
            }
        };
        self.command(&id, &order, request).await
    }

    pub(super) async fn withdraw_all(
        &self,
        ids: Vec<MessageId>,
        how: Withdraw,
        request: Option<&str>,
    ) -> Vec<Result<Message, Error>> {
        let order = match how {
            Withdraw::Unsent => Order::Withdraw,
            Withdraw::Stop => Order::Stop,
        };
        let order = &order;
        let changing = ids.into_iter().enumerate();
        let changing = changing.map(|(index, id)| async move {
            let request = request.map(|request| (request, index));
            self.command(&id, order, request).await
        });
        stream::iter(changing).buffered(AT_ONCE).collect().await
    }

    pub(super) async fn replay_one(&self, id: &MessageId) -> Result<Accepted, Error> {
        let shard = self.shard_of(id);
        let to = loop {
            // In the same shard, so that one fact ends the old one and makes the new one.
            let drawn = MessageId::unique();
            if self.shard_of(&drawn) == shard {
                break drawn;
            }
        };
        let order = Order::Replay { to: to.clone() };
        self.command(id, &order, None).await?;
        let made = self.look_up(&to).await;
        Ok(Accepted {
            due: made.map_or_else(|_| self.clock.now(), |made| made.record.due()),
            id: to,
            is_new: true,
            state: Some(StateName::Scheduled),
        })
    }

    pub(super) async fn purge_one(&self, id: &MessageId) -> Result<(), Error> {
        self.command(id, &Order::Purge, None).await.map(drop)
    }

    /// Asks the owner for a change; its answer is final.
    pub(super) async fn command(
        &self,
        id: &MessageId,
        order: &Order,
        request: Option<(&str, usize)>,
    ) -> Result<Message, Error> {
        // Sent again, one would move the message twice, and all of one request have one answer, wherever they are sent to.
        let key = |number| {
            let is_once = request.is_some() || matches!(order, Order::ExtendBy(_));
            is_once.then(|| asked(id, order, request).key(number))
        };
        let since = Instant::now();
        let answer = self.command_once(id, order, key(0)).await;
        if !is_missing(&answer) {
            return answer;
        }
        self.intake_read(id, since).await?;
        self.command_once(id, order, key(1)).await
    }

    async fn command_once(
        &self,
        id: &MessageId,
        order: &Order,
        key: Option<(Key, RequestDigest)>,
    ) -> Result<Message, Error> {
        if self.is_closed() {
            return Err(Error::CLOSED);
        }
        let what = request::What::Command(convert::command(id, order, key));
        let Replied { what, is_repeated } = self.ask(id, what).await?;
        let reply::What::Answer(answer) = what else {
            return Err(odd(&what));
        };
        let refusal = answer.refusal();
        let Some(found) = answer.message else {
            if refusal == proto::Refusal::None || is_repeated && *order == Order::Purge {
                return Ok(gone(id));
            }
            return Err(laneway_delay::Error::NotFound(id.clone()).into());
        };
        if refusal == proto::Refusal::None || is_repeated && is_done(order, &found) {
            return convert::restore(found).map_err(|invalid| unreadable(&invalid));
        }
        if convert::is_gone(&found) {
            return Err(laneway_delay::Error::NotFound(id.clone()).into());
        }
        let message = convert::restore(found).map_err(|invalid| unreadable(&invalid))?;
        Err(refused(refusal, order, &message))
    }
}

/// A command, as its key knows it again.
fn asked<'a>(id: &'a MessageId, order: &Order, request: Option<(&'a str, usize)>) -> Asked<'a> {
    let (what, by) = match order {
        Order::ExtendTo(due) => ("extend to", u128::from(due.as_millis())),
        Order::ExtendBy(by) => ("extend by", by.as_nanos()),
        Order::Withdraw => ("withdraw", 0),
        Order::Stop => ("stop", 0),
        Order::Replay { .. } => ("replay", 0),
        Order::Purge => ("purge", 0),
    };
    Asked {
        id,
        what,
        by,
        request,
    }
}

/// Whether a message is as a command without a key would have made it. The try before this one had no answer: that it took
/// effect is the only reason for this one to be refused, or another client wanted the same.
fn is_done(order: &Order, message: &proto::Message) -> bool {
    match order {
        Order::ExtendTo(due) => {
            message.state() == proto::State::Scheduled && message.due_ms == due.as_millis()
        }
        Order::ExtendBy(_) => false,
        Order::Withdraw => message.state() == proto::State::Withdrawn,
        Order::Stop => matches!(
            message.state(),
            proto::State::Withdrawn | proto::State::Stopped
        ),
        Order::Replay { to } => message.replayed_as == to.as_str(),
        Order::Purge => message.state() == proto::State::Purged,
    }
}

/// As on one machine.
fn refused(refusal: proto::Refusal, order: &Order, message: &Message) -> Error {
    let record = &message.record;
    let reason = match refusal {
        proto::Refusal::Unknown => {
            return laneway_delay::Error::NotFound(message.id.clone()).into();
        }
        proto::Refusal::OtherCommand => return Error::OtherCommand,
        proto::Refusal::TooManyCommands => return Error::TooManyCommands(message.id.clone()),
        // An attempt that runs is told by its state.
        proto::Refusal::MayHaveBeenDelivered if !is_firing(message) => Reason::InDoubt,
        proto::Refusal::NotLater => Reason::NotLater {
            due: match order {
                Order::ExtendTo(due) => *due,
                Order::ExtendBy(by) => record.due() + *by,
                _ => record.due(),
            },
            after: record.due(),
        },
        _ => Reason::WrongState,
    };
    let action = match order {
        Order::ExtendTo(_) | Order::ExtendBy(_) => Action::Extend,
        Order::Withdraw | Order::Stop => Action::Withdraw,
        Order::Replay { .. } => Action::Replay,
        Order::Purge => Action::Purge,
    };
    laneway_delay::Error::Refused(Refusal {
        action,
        reason,
        version: record.version(),
        state: record.state(),
    })
    .into()
}

fn is_firing(message: &Message) -> bool {
    matches!(message.record.state(), State::Firing { .. })
}

/// A message of which nothing is left.
fn gone(id: &MessageId) -> Message {
    let at = Timestamp::from_millis(0);
    Message {
        id: id.clone(),
        topic: String::new(),
        record: laneway_delay::Record::scheduled(at),
        accepted: at,
        payload: bytes::Bytes::new(),
        content_type: None,
        target: laneway_delay::Target::callback(""),
        retry: None,
        metadata: std::collections::BTreeMap::new(),
        history: Vec::new(),
    }
}

fn check_most(due: Timestamp, now: Timestamp, most: Timestamp) -> Result<(), Error> {
    if due <= most {
        return Ok(());
    }
    let problem = format!(
        "the message would be due {} s from now, and {} s are the most here; choose an earlier moment",
        due.since(now).as_secs(),
        most.since(now).as_secs()
    );
    let field = "due";
    Err(laneway_delay::Error::Invalid { field, problem }.into())
}

use std::time::Duration;

use bytes::Bytes;
use laneway_cluster::owner::{Order, Request, Ticket, Verdict};
use laneway_cluster::record::{Answer, Key, Refusal, RequestDigest};
use laneway_delay::{MessageId, Timestamp};

use super::Invalid;
use super::field::{self, millis, required};
use crate::proto::{self, command::Order as Wire, request::What};

/// A command as the owner is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commanded {
    /// About which message.
    pub id: MessageId,
    /// What to do.
    pub order: Order,
    /// The key of the command, and the request as it was written.
    pub key: Option<(Key, RequestDigest)>,
}

/// A command as it goes over the wire.
#[must_use]
pub fn command(id: &MessageId, order: &Order, key: Option<(Key, RequestDigest)>) -> proto::Command {
    let order = match order {
        Order::ExtendTo(due) => Wire::ExtendToMs(due.as_millis()),
        Order::ExtendBy(delay) => Wire::ExtendByMs(millis(*delay)),
        Order::Withdraw => Wire::Withdraw(true),
        Order::Stop => Wire::Stop(true),
        Order::Replay { to } => Wire::Replay(to.as_str().to_owned()),
        Order::Purge => Wire::Purge(true),
    };
    let (key, digest) = key.map_or_else(Default::default, |(key, digest)| {
        let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        (bytes(&key.0), bytes(&digest.0))
    });
    proto::Command {
        id: id.as_str().to_owned(),
        order: Some(order),
        key,
        digest,
    }
}

impl TryFrom<proto::Command> for Commanded {
    type Error = Invalid;

    fn try_from(command: proto::Command) -> Result<Self, Invalid> {
        let id = field::id("command.id", &command.id)?;
        let no = |field| Err(Invalid::new(field, "it is false, which orders nothing"));
        let order = match required("command.order", command.order)? {
            Wire::ExtendToMs(due) => Order::ExtendTo(Timestamp::from_millis(due)),
            Wire::ExtendByMs(delay) => Order::ExtendBy(Duration::from_millis(delay)),
            Wire::Withdraw(true) => Order::Withdraw,
            Wire::Withdraw(false) => return no("command.withdraw"),
            Wire::Stop(true) => Order::Stop,
            Wire::Stop(false) => return no("command.stop"),
            Wire::Replay(to) => Order::Replay {
                to: field::id("command.replay", &to)?,
            },
            Wire::Purge(true) => Order::Purge,
            Wire::Purge(false) => return no("command.purge"),
        };
        let key = match (command.key.is_empty(), command.digest.is_empty()) {
            (true, true) => None,
            _ => Some((
                field::key("command.key", &command.key)?,
                field::digest("command.digest", &command.digest)?,
            )),
        };
        Ok(Self { id, order, key })
    }
}

/// The request that the owner is asked with, for those that it decides: commands and look-ups. `None`: the center answers the
/// others by itself.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn request(ticket: Ticket, request: proto::Request) -> Result<Option<Request>, Invalid> {
    match required("request.what", request.what)? {
        What::Command(command) => {
            let Commanded { id, order, key } = command.try_into()?;
            Ok(Some(Request::Command {
                ticket,
                id,
                order,
                key,
            }))
        }
        What::LookUp(id) => {
            let id = field::id("request.look_up", &id)?;
            Ok(Some(Request::LookUp { ticket, id }))
        }
        _ => Ok(None),
    }
}

impl From<Refusal> for proto::Refusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown => Self::Unknown,
            Refusal::MayHaveBeenDelivered => Self::MayHaveBeenDelivered,
            Refusal::NotLater => Self::NotLater,
            Refusal::OtherCommand => Self::OtherCommand,
            Refusal::TooManyCommands => Self::TooManyCommands,
            // `WrongState`, and what is not known here: it was refused.
            _ => Self::WrongState,
        }
    }
}

impl From<&Answer> for proto::Answer {
    /// Without the message.
    fn from(answer: &Answer) -> Self {
        let (refusal, due_ms) = match answer {
            Answer::Done { due } => (proto::Refusal::None, due.as_millis()),
            Answer::Refused(refusal) => ((*refusal).into(), 0),
            _ => (proto::Refusal::WrongState, 0),
        };
        Self {
            refusal: refusal.into(),
            message: None,
            due_ms,
        }
    }
}

impl TryFrom<&proto::Answer> for Answer {
    type Error = Invalid;

    fn try_from(answer: &proto::Answer) -> Result<Self, Invalid> {
        let refusal = proto::Refusal::try_from(answer.refusal).map_err(|_| {
            let problem = format!("{} is not known here", answer.refusal);
            Invalid::new("answer.refusal", problem)
        })?;
        let refused = match refusal {
            proto::Refusal::None => {
                let due = Timestamp::from_millis(answer.due_ms);
                return Ok(Self::Done { due });
            }
            proto::Refusal::Unknown => Refusal::Unknown,
            proto::Refusal::WrongState => Refusal::WrongState,
            proto::Refusal::MayHaveBeenDelivered => Refusal::MayHaveBeenDelivered,
            proto::Refusal::NotLater => Refusal::NotLater,
            proto::Refusal::OtherCommand => Refusal::OtherCommand,
            proto::Refusal::TooManyCommands => Refusal::TooManyCommands,
        };
        Ok(Self::Refused(refused))
    }
}

impl From<Option<Verdict>> for proto::Verdict {
    /// `None`: nothing was decided in time.
    fn from(verdict: Option<Verdict>) -> Self {
        match verdict {
            None => Self::NoneYet,
            Some(Verdict::Accepted) => Self::Accepted,
            Some(Verdict::Duplicate) => Self::Duplicate,
            Some(Verdict::Conflict) => Self::Conflict,
            Some(Verdict::TooOld) => Self::TooOld,
        }
    }
}

impl TryFrom<proto::Verdict> for Option<Verdict> {
    type Error = Invalid;

    fn try_from(verdict: proto::Verdict) -> Result<Self, Invalid> {
        match verdict {
            proto::Verdict::NoneYet => Ok(None),
            proto::Verdict::Accepted => Ok(Some(Verdict::Accepted)),
            proto::Verdict::Duplicate => Ok(Some(Verdict::Duplicate)),
            proto::Verdict::Conflict => Ok(Some(Verdict::Conflict)),
            proto::Verdict::TooOld => Ok(Some(Verdict::TooOld)),
            proto::Verdict::Unspecified => Err(Invalid::new("verdict", "there is none")),
        }
    }
}

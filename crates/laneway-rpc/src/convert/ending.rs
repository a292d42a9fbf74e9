use std::time::Duration;

use laneway_cluster::owner::Outcome;
use laneway_delay::{Failure, Undelivered};

use super::Invalid;
use super::field::{millis, required};
use crate::proto::{self, ending::How};

impl From<Outcome> for proto::Ending {
    fn from(outcome: Outcome) -> Self {
        let how = match outcome {
            Outcome::Delivered => How::Delivered(true),
            Outcome::Failed {
                reason,
                after,
                is_final,
            } => How::Failed(proto::Failure {
                reason,
                after_ms: millis(after),
                is_final,
            }),
            Outcome::HandedBack { wait } => How::HandedBackMs(millis(wait)),
            // Of one that is not known here, too, that is what is certain.
            _ => How::Unknown(String::new()),
        };
        Self { how: Some(how) }
    }
}

impl TryFrom<proto::Ending> for Outcome {
    type Error = Invalid;

    fn try_from(ending: proto::Ending) -> Result<Self, Invalid> {
        let how = required("ending.how", ending.how)?;
        let no = |field| Err(Invalid::new(field, "it is false, which says nothing"));
        match how {
            How::Delivered(true) => Ok(Self::Delivered),
            How::Delivered(false) => no("ending.delivered"),
            How::Failed(failure) => Ok(Self::Failed {
                reason: failure.reason,
                after: Duration::from_millis(failure.after_ms),
                is_final: failure.is_final,
            }),
            How::Unknown(_) => Ok(Self::Unknown),
            How::HandedBackMs(wait) => Ok(Self::HandedBack {
                wait: Duration::from_millis(wait),
            }),
        }
    }
}

impl From<&Undelivered> for proto::Ending {
    fn from(undelivered: &Undelivered) -> Self {
        let reason = || undelivered.reason.clone();
        let failed = |after, is_final| {
            How::Failed(proto::Failure {
                reason: reason(),
                after_ms: millis(after),
                is_final,
            })
        };
        let how = match undelivered.failure {
            Failure::Retry => failed(Duration::ZERO, false),
            Failure::RetryAfter(wait) => failed(wait, false),
            Failure::Permanent => failed(Duration::ZERO, true),
            Failure::Postponed(wait) | Failure::Unavailable(wait) => {
                How::HandedBackMs(millis(wait))
            }
            // `Unknown`, `UnknownAfter`, and what is not known here.
            _ => How::Unknown(reason()),
        };
        Self { how: Some(how) }
    }
}

impl From<&Result<(), Undelivered>> for proto::Ending {
    fn from(result: &Result<(), Undelivered>) -> Self {
        match result {
            Ok(()) => Outcome::Delivered.into(),
            Err(undelivered) => undelivered.into(),
        }
    }
}

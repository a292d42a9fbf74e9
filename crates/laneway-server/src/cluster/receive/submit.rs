//! Into the intake.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use laneway::envelope::EnvelopeBuilder;
use laneway::{DELAY_TOPIC, Envelope};
use laneway_cluster::owner::{Submit, Verdict};
use laneway_delay::{Accepted, Delays, MessageId, StateName, Submission, Target, Timestamp, When};
use laneway_rpc::convert::{self, Parts};
use laneway_rpc::proto::{self, reply, request};
use prost::Message as _;
use tokio::time::Instant;

use super::{AT_ONCE, Receive, WITHIN, digest, odd};
use crate::cluster::owners::Replied;
use crate::messages::Error;

/// The type of the event that carries a submit.
const SUBMITTED: &str = "DelaySubmitted";

/// What its payload is.
const INTAKE: &str = "application/vnd.laneway.intake+protobuf";

/// What a broker takes has to leave room for the history of a message, since an owner writes both into one record.
const ROOM: usize = 64 << 10;

/// An envelope without its payload, at most.
const ENVELOPE: usize = 2 << 10;

/// How often a center is asked for the verdict, at least.
const VERDICT_WITHIN: Duration = Duration::from_millis(1_500);

/// A submission that was checked.
struct Draft {
    submit: Submit,
    envelope: Envelope,
    /// What the client named it by, if it may have sent the same before.
    given: Given,
}

/// Where the id of a message came from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    /// It was drawn.
    Nothing,
    /// A proxy may send the same to several servers.
    Request,
    /// The client gave the id.
    Id,
    /// The client gave this key.
    Key(String),
}

impl Receive {
    pub(super) async fn submit_all(
        &self,
        submissions: Vec<Submission>,
        request_id: Option<&str>,
    ) -> Vec<Result<Accepted, Error>> {
        let now = self.clock.now_or_later();
        let drafts: Vec<Result<Draft, Error>> = submissions
            .into_iter()
            .enumerate()
            .map(|(index, submission)| {
                let request = request_id.map(|request| (request, index));
                self.draft(submission, request, now)
            })
            .collect();
        let good = drafts.iter().filter_map(|draft| draft.as_ref().ok());
        let envelopes: Vec<Envelope> = good.map(|draft| draft.envelope.clone()).collect();
        let published = if envelopes.is_empty() {
            Ok(())
        } else {
            let publishing = self.bus.publish_envelope_batch(DELAY_TOPIC, &envelopes);
            publishing.await.map(drop)
        };
        let deadline = Instant::now() + WITHIN;
        let answers = drafts.into_iter().map(|draft| async {
            let draft = draft?;
            if let Err(error) = &published {
                return Err(Error::Intake {
                    reason: error.to_string(),
                    is_safe: draft.given != Given::Nothing,
                });
            }
            self.answer(draft, deadline).await
        });
        stream::iter(answers).buffered(AT_ONCE).collect().await
    }

    /// Checks a submission as the embedded store does, and gives it its id and its due time.
    fn draft(
        &self,
        mut submission: Submission,
        request: Option<(&str, usize)>,
        now: Timestamp,
    ) -> Result<Draft, Error> {
        if self.is_closed() {
            return Err(Error::CLOSED);
        }
        submission.check()?;
        self.check_target(&mut submission)?;
        if submission.replace {
            let problem = "a cluster does not replace messages: withdraw the other one, and choose another id";
            return Err(invalid("replace", problem));
        }
        let (id, given) = match (&submission.id, &submission.idempotency_key, request) {
            (Some(_), Some(_), _) => return Err(Error::IdAndKey),
            (Some(id), None, _) => (id.clone(), Given::Id),
            (None, Some(key), _) => {
                let id = digest::id_of_key(key)?;
                (id, Given::Key(key.clone()))
            }
            (None, None, Some((request, index))) => {
                (digest::id_of_request(request, index)?, Given::Request)
            }
            (None, None, None) => (MessageId::unique(), Given::Nothing),
        };
        let due = match submission.when {
            When::After(delay) => now + delay,
            When::At(due) => due,
        };
        Delays::check_due(due, now, self.max_delay)?;
        let digest = digest::of_submission(&submission);
        let topic = submission.topic.clone();
        let submit = Submit {
            id,
            digest,
            due,
            at: now,
            topic,
            body: convert::body(&Parts::from(submission)),
        };
        let envelope = self.envelope(&submit)?;
        Ok(Draft {
            submit,
            envelope,
            given,
        })
    }

    fn check_target(&self, submission: &mut Submission) -> Result<(), Error> {
        if let Target::Callback(callback) = &mut submission.target {
            if let Some(callbacks) = &self.sinks.callbacks {
                callbacks.check(callback)?;
            }
            return Ok(());
        }
        let bus = self.sinks.bus.as_ref();
        if let Some(problem) = bus.and_then(|bus| bus.objection(submission)) {
            return Err(invalid("payload", problem));
        }
        Ok(())
    }

    fn envelope(&self, submit: &Submit) -> Result<Envelope, Error> {
        let record = convert::intake(submit).encode_to_vec();
        // In an envelope, which is JSON, bytes are written in base64.
        let size = record.len().div_ceil(3) * 4 + ENVELOPE;
        let most = self.largest.saturating_sub(ROOM);
        if size > most {
            let problem = format!(
                "the message takes {size} bytes on the broker, and {most} are the most there (its limit, less 64 KiB): \
                 store the payload elsewhere and send where it is, or raise the limit of the broker"
            );
            return Err(invalid("payload", problem));
        }
        let builder: EnvelopeBuilder = Envelope::builder(submit.id.as_str(), SUBMITTED);
        let envelope = builder.bytes(INTAKE, record);
        envelope.map_err(|error| invalid("payload", error.to_string()))
    }

    /// What became of a message that is in the intake.
    async fn answer(&self, draft: Draft, deadline: Instant) -> Result<Accepted, Error> {
        let Draft { submit, given, .. } = draft;
        let accepted = Accepted {
            id: submit.id.clone(),
            due: submit.due,
            is_new: true,
            state: Some(StateName::Scheduled),
        };
        if matches!(given, Given::Nothing | Given::Request) {
            return Ok(accepted);
        }
        let verdict = self.verdict(&submit, deadline).await;
        match verdict.map_err(|reason| Error::Undecided { reason })? {
            Verdict::Accepted => Ok(accepted),
            Verdict::Duplicate => self.duplicate(accepted, &given).await,
            Verdict::Conflict => Err(match given {
                Given::Key(key) => laneway_delay::Error::KeyReused { key, id: submit.id },
                _ => laneway_delay::Error::IdTaken(submit.id),
            }
            .into()),
            Verdict::TooOld => Err(Error::Undecided {
                reason: "it waited for too long".to_owned(),
            }),
        }
    }

    /// The final word of the owner, or why there is none.
    async fn verdict(&self, submit: &Submit, deadline: Instant) -> Result<Verdict, String> {
        let shard = self.shard_of(&submit.id);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let within = left.min(VERDICT_WITHIN);
            let what = request::What::Verdict(proto::AwaitVerdict {
                id: submit.id.as_str().to_owned(),
                digest: submit.digest.0.to_vec().into(),
                submitted_ms: submit.at.as_millis(),
                within_ms: u32::try_from(within.as_millis()).unwrap_or(u32::MAX),
            });
            let asked = self.owners.ask(shard, what, deadline).await;
            let Replied { what, .. } = asked.map_err(|error| error.to_string())?;
            let reply::What::Verdict(verdict) = what else {
                return Err(odd(&what).to_string());
            };
            let verdict = proto::Verdict::try_from(verdict).unwrap_or_default();
            let decided = <Option<Verdict>>::try_from(verdict);
            match decided.map_err(|invalid| invalid.to_string())? {
                Some(verdict) => return Ok(verdict),
                None if left.is_zero() => {
                    return Err(format!("shard {shard} has decided nothing yet"));
                }
                None => {}
            }
        }
    }

    /// The answer to a submission that an earlier one has made already.
    async fn duplicate(&self, mut accepted: Accepted, given: &Given) -> Result<Accepted, Error> {
        if matches!(given, Given::Key(_)) {
            accepted.id = self.meant_by(&accepted.id).await?;
        }
        let found = self.look_up(&accepted.id).await;
        let (due, state) = match found {
            Ok(message) => {
                let state = StateName::from(message.record.state());
                (message.record.due(), Some(state))
            }
            Err(Error::Delay(laneway_delay::Error::NotFound(_))) => (accepted.due, None),
            Err(error) => return Err(error),
        };
        Ok(Accepted {
            due,
            is_new: false,
            state,
            ..accepted
        })
    }
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Error {
    let problem = problem.into();
    laneway_delay::Error::Invalid { field, problem }.into()
}

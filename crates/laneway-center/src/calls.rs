//! What receive and admin ask of a center.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use laneway_cluster::owner::Verdict;
use laneway_delay::{BoxFuture, StateName, Timestamp};
use laneway_rpc::convert::{self, Commanded, Contents};
use laneway_rpc::proto::{self, reply::What as Answered, request::What};
use laneway_rpc::{CallError, CenterCalls};
use laneway_view::{ListQuery, ViewReader};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::center::Center;
use crate::shard::{Event, Mailbox};
use crate::shared::Shared;

/// The most messages on a page.
const PAGE: u32 = 1_000;

/// The longest wait for a verdict.
const VERDICT_WITHIN: Duration = Duration::from_secs(30);

impl CenterCalls for Center {
    fn call(&self, request: proto::Request) -> BoxFuture<'_, Result<proto::Reply, CallError>> {
        Box::pin(async move {
            let what = self.answer(request).await?;
            Ok(proto::Reply { what: Some(what) })
        })
    }
}

impl Center {
    async fn answer(&self, request: proto::Request) -> Result<Answered, CallError> {
        let number = request.shard;
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(mailbox) = self.mailboxes.get(index) else {
            let shards = self.mailboxes.len();
            return Err(CallError::Refused(format!(
                "there are {shards} shards, and none with number {number}"
            )));
        };
        let what = request
            .what
            .ok_or_else(|| refused("request.what: it is missing"))?;
        let is_owner = self.shared.states[index].is_owner.load(Relaxed);
        match what {
            What::Status(_) => Ok(Answered::Status(status(&self.shared, number))),
            _ if !is_owner => Ok(Answered::NotOwner(true)),
            What::Command(command) => {
                let Commanded { id, order, key } = command.try_into().map_err(refused)?;
                self.ask(mailbox, |reply| Event::Command {
                    id,
                    order,
                    key,
                    reply,
                })
                .await
            }
            What::LookUp(id) => {
                let id = convert::id("request.look_up", &id).map_err(refused)?;
                self.ask(mailbox, |reply| Event::LookUp { id, reply }).await
            }
            What::Verdict(awaited) => self.verdict(mailbox, awaited).await,
            What::List(list) => {
                let clock = self.shared.clock.clone();
                self.read(index, move |reader| page(reader, &list, clock.now()))
                    .await
            }
            What::Counts(_) => self.read(index, |reader| Ok(counts(reader))).await,
        }
    }

    /// Asks the task of a shard.
    async fn ask(
        &self,
        mailbox: &Mailbox,
        event: impl FnOnce(oneshot::Sender<proto::Reply>) -> Event,
    ) -> Result<Answered, CallError> {
        let (reply, answer) = oneshot::channel();
        let event = event(reply);
        let asking = async {
            mailbox.send(event).await.ok()?;
            answer.await.ok()?.what
        };
        let within = self.shared.settings.call_within;
        let answer = timeout(within, asking).await;
        let answer = answer.map_err(|_| CallError::Deadline)?;
        // The task is gone: whether the command was done is not known, and its key answers that.
        answer.ok_or(CallError::Deadline)
    }

    async fn verdict(
        &self,
        mailbox: &Mailbox,
        awaited: proto::AwaitVerdict,
    ) -> Result<Answered, CallError> {
        let id = convert::id("verdict.id", &awaited.id).map_err(refused)?;
        let digest = convert::digest("verdict.digest", &awaited.digest).map_err(refused)?;
        let (reply, verdict) = oneshot::channel();
        let event = Event::Verdict {
            id,
            digest,
            submitted: Timestamp::from_millis(awaited.submitted_ms),
            reply,
        };
        let asking = async {
            mailbox.send(event).await.ok()?;
            verdict.await.ok()
        };
        let within = Duration::from_millis(u64::from(awaited.within_ms)).min(VERDICT_WITHIN);
        let verdict: Option<Verdict> = timeout(within, asking).await.ok().flatten();
        let verdict = proto::Verdict::from(verdict);
        Ok(Answered::Verdict(verdict.into()))
    }

    /// Reads the view of a shard.
    async fn read(
        &self,
        index: usize,
        look: impl FnOnce(&ViewReader) -> Result<Answered, CallError> + Send + 'static,
    ) -> Result<Answered, CallError> {
        let Some(reader) = self.shared.states[index].reader() else {
            return Ok(Answered::NotOwner(true));
        };
        let reading = tokio::task::spawn_blocking(move || look(&reader));
        match timeout(self.shared.settings.call_within, reading).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::Unreachable("the center stops".to_owned())),
            Err(_) => Err(CallError::Deadline),
        }
    }
}

fn refused(problem: impl std::fmt::Display) -> CallError {
    CallError::Refused(problem.to_string())
}

fn failed(error: impl std::fmt::Display) -> CallError {
    CallError::Unreachable(format!("its view cannot be read: {error}"))
}

fn page(reader: &ViewReader, list: &proto::List, now: Timestamp) -> Result<Answered, CallError> {
    let page = reader.list(&query(list)?).map_err(failed)?;
    let mut messages = Vec::with_capacity(page.rows.len());
    for (_, id, row) in &page.rows {
        let message = convert::message(id, row, now, Contents::Without);
        messages.push(message.map_err(failed)?);
    }
    Ok(Answered::Page(proto::Page {
        messages,
        has_more: page.next.is_some(),
    }))
}

fn query(list: &proto::List) -> Result<ListQuery, CallError> {
    let state = match list.state() {
        // What is under way is scheduled to the view.
        proto::State::Scheduled | proto::State::Firing => StateName::Scheduled,
        proto::State::Delivered => StateName::Delivered,
        proto::State::Dead => StateName::Dead,
        proto::State::Withdrawn | proto::State::Stopped => StateName::Withdrawn,
        _ => return Err(refused("list.state: there are no lists of it")),
    };
    let after = match &list.after {
        Some(place) => {
            let id = convert::id("list.after.id", &place.id).map_err(refused)?;
            Some((Timestamp::from_millis(place.at_ms), id))
        }
        None => None,
    };
    let moment = |millis: u64| (millis > 0).then(|| Timestamp::from_millis(millis));
    Ok(ListQuery {
        topic: Some(list.topic.clone()).filter(|topic| !topic.is_empty()),
        from: moment(list.from_ms),
        until: moment(list.until_ms),
        after,
        limit: usize::try_from(list.limit.clamp(1, PAGE)).unwrap_or(1),
        with_bodies: false,
        ..ListQuery::new(state)
    })
}

fn counts(reader: &ViewReader) -> Answered {
    let topics = reader.counts().into_iter();
    let topics = topics.map(|(topic, counts)| proto::TopicCounts {
        topic,
        scheduled: counts.scheduled,
        firing: counts.firing,
        delivered: counts.delivered,
        dead: counts.dead,
        withdrawn: counts.withdrawn,
    });
    Answered::Counts(proto::Counts {
        topics: topics.collect(),
    })
}

/// How a shard is doing on this center.
pub(crate) fn status(shared: &Arc<Shared>, number: u32) -> proto::ShardStatus {
    let state = &shared.states[number as usize];
    let workers = shared.workers.seen().into_iter();
    let workers = workers.map(|seen| proto::WorkerStatus {
        instance: seen
            .instance
            .map(|it| it.0.to_vec().into())
            .unwrap_or_default(),
        name: seen.name,
        is_connected: seen.is_connected,
        held: seen.load.held,
        offset_ms: seen.ahead,
        is_draining: seen.is_draining,
        cpu: seen.load.cpu,
        memory: seen.load.memory,
        unsettled: seen.unsettled,
    });
    proto::ShardStatus {
        shard: number,
        is_owner: state.is_owner.load(Relaxed),
        epoch: state.epoch.load(Relaxed),
        applied: state.applied.load(Relaxed),
        rows: state.rows.load(Relaxed),
        stopped: state.stopped().unwrap_or_default(),
        is_assigned: state.is_assigned.load(Relaxed),
        workers: workers.collect(),
        has_left: shared.has_left.load(Relaxed),
    }
}

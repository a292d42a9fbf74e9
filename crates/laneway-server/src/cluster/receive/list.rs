//! Lists over all shards.

use futures_util::{StreamExt, stream};
use laneway_cluster::owner::Order;
use laneway_delay::{Error as DelayError, Message, MessageId, Query, StateName, Timestamp};
use laneway_rpc::convert;
use laneway_rpc::proto::{self, reply, request};
use tokio::time::Instant;

use super::{AT_ONCE, Receive, WITHIN, odd, unreadable};
use crate::cluster::owners::Replied;
use crate::messages::{Error, List, Listed};

/// A place in the order of a list: nothing in it depends on an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    at: Timestamp,
    id: MessageId,
}

impl Cursor {
    fn show(&self) -> String {
        format!("{:x}.{}", self.at.as_millis(), self.id)
    }

    fn parse(text: &str) -> Option<Self> {
        let (at, id) = text.split_once('.')?;
        let at = u64::from_str_radix(at, 16).ok()?;
        Some(Self {
            at: Timestamp::from_millis(at),
            id: MessageId::new(id).ok()?,
        })
    }

    /// Where a message of a list is.
    fn of(message: &proto::Message) -> Option<Self> {
        let at = match message.state() {
            proto::State::Scheduled | proto::State::Firing => message.next_ms,
            _ => message.ended_ms,
        };
        Some(Self {
            at: Timestamp::from_millis(at),
            id: MessageId::new(&message.id).ok()?,
        })
    }
}

impl Receive {
    /// A page over all shards. Those without an owner are named.
    pub(super) async fn merged(&self, list: &List) -> Result<Listed, Error> {
        let query = &list.query;
        let after = match &list.after {
            None => None,
            Some(text) => Some(Cursor::parse(text).ok_or_else(|| {
                let problem = format!("{text:?} is not a place; use `next` of the page before");
                let field = "after";
                DelayError::Invalid { field, problem }
            })?),
        };
        let limit = query.limit.min(Query::MAX_LIMIT);
        let deadline = Instant::now() + WITHIN;
        let asked = (0..self.shards).map(|shard| {
            let what = request::What::List(asked(query, after.as_ref(), limit));
            async move { (shard, self.owners.ask(shard, what, deadline).await) }
        });
        let replies = stream::iter(asked).buffer_unordered(AT_ONCE);
        let replies: Vec<_> = replies.collect().await;
        let (mut found, mut incomplete) = (Vec::new(), Vec::new());
        // Behind this place a shard may have more than it told.
        let mut until: Option<Cursor> = None;
        for (shard, reply) in replies {
            let Ok(Replied { what, .. }) = reply else {
                incomplete.push(shard);
                continue;
            };
            let reply::What::Page(page) = what else {
                return Err(odd(&what));
            };
            let of_shard: Vec<(Cursor, proto::Message)> = page
                .messages
                .into_iter()
                .filter_map(|message| Some((Cursor::of(&message)?, message)))
                .collect();
            if page.has_more
                && let Some((last, _)) = of_shard.last()
                && until.as_ref().is_none_or(|until| last < until)
            {
                until = Some(last.clone());
            }
            found.extend(of_shard);
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        // What is under way is scheduled to a view.
        let is_firing = query.state == StateName::Firing;
        found.retain(|(place, message)| {
            let is_behind = until.as_ref().is_some_and(|until| place > until);
            !is_behind && (message.state() == proto::State::Firing) == is_firing
        });
        if found.len() > limit {
            found.truncate(limit);
            until = found.last().map(|(place, _)| place.clone());
        }
        let messages: Result<Vec<Message>, _> = found
            .into_iter()
            .map(|(_, message)| convert::restore(message))
            .collect();
        incomplete.sort_unstable();
        Ok(Listed {
            messages: messages.map_err(|invalid| unreadable(&invalid))?,
            next: until.map(|until| until.show()),
            incomplete,
        })
    }

    pub(super) async fn purge_all(&self, topic: Option<&str>) -> Result<u64, Error> {
        let query = Query {
            topic: topic.map(str::to_owned),
            limit: Query::MAX_LIMIT,
            ..Query::new(StateName::Dead)
        };
        let mut list = List { query, after: None };
        let mut purged = 0;
        loop {
            let page = self.merged(&list).await?;
            let purging = page.messages.into_iter().map(|message| async move {
                match self.command(&message.id, &Order::Purge, None).await {
                    Ok(_) => Ok(1),
                    // Another caller was faster.
                    Err(error) if error.is_no() => Ok(0),
                    Err(error) => Err(error),
                }
            });
            let counted: Vec<Result<u64, Error>> =
                stream::iter(purging).buffered(AT_ONCE).collect().await;
            for count in counted {
                purged += count?;
            }
            match page.next {
                Some(next) => list.after = Some(next),
                None => return Ok(purged),
            }
        }
    }
}

fn asked(query: &Query, after: Option<&Cursor>, limit: usize) -> proto::List {
    let state = match query.state {
        StateName::Firing => proto::State::Firing,
        StateName::Delivered => proto::State::Delivered,
        StateName::Dead => proto::State::Dead,
        StateName::Withdrawn => proto::State::Withdrawn,
        _ => proto::State::Scheduled,
    };
    proto::List {
        state: state.into(),
        topic: query.topic.clone().unwrap_or_default(),
        from_ms: query.from.map_or(0, Timestamp::as_millis),
        until_ms: query.until.map_or(0, Timestamp::as_millis),
        after: after.map(|cursor| proto::Place {
            at_ms: cursor.at.as_millis(),
            id: cursor.id.as_str().to_owned(),
        }),
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_read_back_whatever_the_id() {
        for id in ["a", "order.4711", "0.1.2", "key-00ff"] {
            let cursor = Cursor {
                at: Timestamp::from_millis(0xabc),
                id: MessageId::new(id).expect("an id"),
            };
            assert_eq!(Cursor::parse(&cursor.show()), Some(cursor));
        }
        for bad in ["", ".", "1", "x.a", "1.", "1.a b"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }
}

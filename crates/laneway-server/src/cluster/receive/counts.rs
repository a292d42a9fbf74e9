//! How many messages there are.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use laneway_delay::Counts;
use laneway_rpc::proto::{CountsRequest, reply, request};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{AT_ONCE, Receive};

/// Counting asks every shard.
const EVERY: Duration = Duration::from_secs(10);

/// An owner that does not answer within this is left out.
const WITHIN: Duration = Duration::from_secs(2);

/// Asks all owners now and then, until it is dropped.
pub(crate) async fn keep_counting(receive: Arc<Receive>) {
    let mut looks = interval(EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let counts = receive.count_all().await;
        *receive.counts.lock() = counts;
    }
}

impl Receive {
    /// Over all shards that have an owner now.
    async fn count_all(&self) -> Counts {
        let deadline = Instant::now() + WITHIN;
        let asked = (0..self.shards).map(|shard| {
            let what = request::What::Counts(CountsRequest {});
            self.owners.ask(shard, what, deadline)
        });
        let replies = stream::iter(asked).buffer_unordered(AT_ONCE);
        let replies: Vec<_> = replies.collect().await;
        let mut sum = Counts::new();
        for reply in replies.into_iter().flatten() {
            let reply::What::Counts(counts) = reply.what else {
                continue;
            };
            for topic in counts.topics {
                let of_topic = sum.entry(topic.topic).or_default();
                of_topic.scheduled += topic.scheduled;
                of_topic.firing += topic.firing;
                of_topic.delivered += topic.delivered;
                of_topic.dead += topic.dead;
                of_topic.withdrawn += topic.withdrawn;
            }
        }
        sum
    }
}

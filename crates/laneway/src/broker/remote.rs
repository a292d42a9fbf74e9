//! Brokers that are servers somewhere else, and that other processes share.
//!
//! A server implements [`Topics`], [`Publish`], [`Ledger`] and [`Server`], whose methods are plain `async fn`s;
//! [`Remote`] makes the [`Broker`] object of it that the bus has.

#[cfg(feature = "metrics")]
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "log")]
use super::log::Logs;
use super::{BoxFuture, Broker, BrokerError, Lag, Member, Offsets, Start};
#[cfg(feature = "metrics")]
use crate::exposition::Page;
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Growth, Partitions, Strategy, Topic, TopicName};

/// What a server does about topics. The methods here and below are those of [`Broker`], which says what each of
/// them must hold.
pub(crate) trait Topics {
    fn partitions(&self, topic: &TopicName) -> Option<Partitions>;

    fn declare(
        &self,
        topic: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> impl Future<Output = Result<Topic, BrokerError>> + Send;

    fn describe(
        &self,
        topic: &TopicName,
    ) -> impl Future<Output = Result<Option<Topic>, BrokerError>> + Send;

    fn topics(&self) -> impl Future<Output = Result<Vec<Topic>, BrokerError>> + Send;

    fn delete(&self, topic: &TopicName) -> impl Future<Output = Result<(), BrokerError>> + Send;
}

/// How a server takes records.
pub(crate) trait Publish {
    /// Answers the offset of each record.
    fn publish(
        &self,
        topic: &TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> impl Future<Output = Result<Vec<u64>, BrokerError>> + Send;

    fn largest(&self) -> Option<usize>;
}

/// What a server knows of groups without being a member, and what they have read.
pub(crate) trait Ledger {
    fn position(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
    ) -> impl Future<Output = Result<Option<Position>, BrokerError>> + Send;

    fn settle(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
        position: Position,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;

    fn peek(
        &self,
        topic: &TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Delivered>, BrokerError>> + Send;

    fn reread(
        &self,
        topic: &TopicName,
        partition: u32,
        range: Range<u64>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Delivered>, BrokerError>> + Send;

    fn lag(
        &self,
        topic: &TopicName,
        group: &str,
    ) -> impl Future<Output = Result<Vec<Lag>, BrokerError>> + Send;
}

/// A server that brokers are made of.
pub(crate) trait Server: Topics + Publish + Ledger + Send + Sync + 'static {
    type Member: Member + 'static;

    /// The member keeps the server.
    fn join(
        self: Arc<Self>,
        topic: &TopicName,
        group: &str,
        start: Start,
    ) -> impl Future<Output = Result<Self::Member, BrokerError>> + Send;

    #[cfg(feature = "log")]
    fn logs(self: &Arc<Self>) -> &dyn Logs;

    fn health(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    #[cfg(feature = "metrics")]
    fn write_metrics(&self, _page: &mut Page<'_>) -> fmt::Result {
        Ok(())
    }

    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// The broker on a server.
pub(crate) struct Remote<S>(Arc<S>);

impl<S> Remote<S> {
    pub(super) fn new(server: Arc<S>) -> Self {
        Self(server)
    }
}

impl<S: Server> Broker for Remote<S> {
    fn is_shared(&self) -> bool {
        true
    }

    fn largest(&self) -> Option<usize> {
        self.0.largest()
    }

    fn partitions(&self, topic: &TopicName) -> Option<Partitions> {
        self.0.partitions(topic)
    }

    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>> {
        Box::pin(self.0.declare(topic, strategy, growth))
    }

    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>> {
        Box::pin(self.0.describe(topic))
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        Box::pin(self.0.topics())
    }

    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.0.delete(topic))
    }

    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<Offsets, BrokerError>> {
        Box::pin(async move {
            let offsets = self.0.publish(topic, partition, records).await?;
            Ok(Offsets::Each(offsets))
        })
    }

    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Box<dyn Member>, BrokerError>> {
        Box::pin(async move {
            let member = self.0.clone().join(topic, group, start).await?;
            Ok(Box::new(member) as Box<dyn Member>)
        })
    }

    fn position<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        Box::pin(self.0.position(topic, partition, group))
    }

    fn settle<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
        position: Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.0.settle(topic, partition, group, position))
    }

    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.0.peek(topic, partition, from, most))
    }

    fn reread<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        range: Range<u64>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.0.reread(topic, partition, range, most))
    }

    #[cfg(feature = "log")]
    fn logs(&self) -> &dyn Logs {
        self.0.logs()
    }

    fn lag<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>> {
        Box::pin(self.0.lag(topic, group))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.health())
    }

    #[cfg(feature = "metrics")]
    fn write_metrics(&self, page: &mut Page<'_>) -> fmt::Result {
        self.0.write_metrics(page)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.close().await;
            Ok(())
        })
    }
}

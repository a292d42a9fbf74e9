//! What is the same in every broker that is a server somewhere else.

/// The methods of [`Broker`](super::Broker) that a broker leaves to the server in its first field.
macro_rules! forward_to_server {
    () => {
        fn is_shared(&self) -> bool {
            true
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
            Box::pin(async move {
                let place = self.0.find(topic).await?;
                Ok(place.map(|place| place.topic.clone()))
            })
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
                let member = member::join(self.0.clone(), topic, group, start).await?;
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

        fn lag<'a>(
            &'a self,
            topic: &'a TopicName,
            group: &'a str,
        ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>> {
            Box::pin(self.0.lag(topic, group))
        }
    };
}

pub(super) use forward_to_server;

//! What users write: handlers of events, of batches of events, and of messages.

use std::future::Future;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use super::event::{Event, Message};
use crate::lanes::Failure;

/// Handles domain events. Closures are handlers too, see
/// [`subscribe_envelope`](crate::Bus::subscribe_envelope).
pub trait EventHandler: Send + Sync + 'static {
    /// Handles one event. It is called again if it fails.
    fn handle(&self, event: Event) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles domain events of one aggregate, several at once. Closures are handlers too.
pub trait EventBatchHandler: Send + Sync + 'static {
    /// Handles events of one aggregate, in order. If it fails, it can say by [`Failure::after`] how
    /// many it has done; the next one is then tried alone.
    fn handle(&self, events: Vec<Event>) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles plain messages. Closures are handlers too.
pub trait MessageHandler: Send + Sync + 'static {
    /// Handles one message. A failure is counted and reported; the message does not come again.
    fn handle(&self, message: Message) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<F, Fut> EventHandler for F
where
    F: Fn(Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn handle(&self, event: Event) -> impl Future<Output = Result<(), Failure>> + Send {
        self(event)
    }
}

impl<F, Fut> EventBatchHandler for F
where
    F: Fn(Vec<Event>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn handle(&self, events: Vec<Event>) -> impl Future<Output = Result<(), Failure>> + Send {
        self(events)
    }
}

impl<F, Fut> MessageHandler for F
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn handle(&self, message: Message) -> impl Future<Output = Result<(), Failure>> + Send {
        self(message)
    }
}

/// A handler of events whose payload is a `T`. A payload that is not one goes to the dead letters:
/// trying again would not change it.
pub(super) struct Typed<T, F> {
    handle: F,
    payload: PhantomData<fn() -> T>,
}

impl<T, F> Typed<T, F> {
    pub(super) fn new(handle: F) -> Self {
        Self {
            handle,
            payload: PhantomData,
        }
    }
}

impl<T, F, Fut> EventHandler for Typed<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        let payload = event.json::<T>().map_err(Failure::fatal)?;
        (self.handle)(payload, event).await
    }
}

/// One event at a time, or several: what the bus calls.
pub(super) trait Events: Send + Sync + 'static {
    /// The most events at once.
    fn most(&self) -> usize;

    fn handle(&self, events: Vec<Event>) -> impl Future<Output = Result<(), Failure>> + Send;
}

pub(super) struct OneByOne<H>(pub(super) H);

impl<H: EventHandler> Events for OneByOne<H> {
    fn most(&self) -> usize {
        1
    }

    async fn handle(&self, events: Vec<Event>) -> Result<(), Failure> {
        for (done, event) in events.into_iter().enumerate() {
            self.0
                .handle(event)
                .await
                .map_err(|failure| failure.after(done))?;
        }
        Ok(())
    }
}

pub(super) struct InBatches<H> {
    pub(super) handler: H,
    pub(super) most: usize,
}

impl<H: EventBatchHandler> Events for InBatches<H> {
    fn most(&self) -> usize {
        self.most.max(1)
    }

    fn handle(&self, events: Vec<Event>) -> impl Future<Output = Result<(), Failure>> + Send {
        self.handler.handle(events)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use anyhow::Context;

    use super::*;

    type Boxed = Box<dyn Error + Send + Sync>;

    fn io() -> std::io::Error {
        std::io::Error::other("the disk")
    }

    /// That these compile is the point: what services return from their own functions goes through `?`.
    #[tokio::test]
    async fn handlers_take_the_errors_that_services_have() {
        let by_error = async || -> Result<(), Failure> { Err(io())? };
        let by_anyhow = async || -> Result<(), Failure> { Err(io()).context("writing the order")? };
        let by_box = async || -> Result<(), Failure> { Err(Boxed::from("a box"))? };
        let by_text = async || -> Result<(), Failure> { Err("a text")? };
        let by_string = async || -> Result<(), Failure> { Err(format!("{} texts", 2))? };
        let by_bus = async || -> Result<(), Failure> { Err(crate::Error::Closed)? };
        let by_itself = async || -> Result<(), Failure> { Err(Failure::fatal("never"))? };
        let mut messages = Vec::new();
        for result in [
            by_error().await,
            by_anyhow().await,
            by_box().await,
            by_text().await,
            by_string().await,
            by_bus().await,
            by_itself().await,
        ] {
            messages.push(result.unwrap_err().message().to_owned());
        }
        let expected = [
            "the disk",
            "writing the order: the disk",
            "a box",
            "a text",
            "2 texts",
            "the bus is closed",
            "never",
        ];
        assert_eq!(messages, expected);
    }
}

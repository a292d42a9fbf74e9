//! A due message becomes a call.

use super::{Call, CallError, Client, check_header};
use crate::{BoxFuture, Callback, Deliver, Error, Firing, Target, Undelivered};

impl Deliver for Client {
    /// Refuses what the guard or the headers refuse, while the sender still listens, and stores the URL in the form in
    /// which it will be sent.
    fn check(&self, callback: &mut Callback) -> Result<(), Error> {
        let destination = self.guard().check(&callback.url);
        let destination =
            destination.map_err(|refused| Error::invalid("target.url", refused.to_string()))?;
        destination.url().as_str().clone_into(&mut callback.url);
        for (name, value) in &callback.headers {
            if let Err(error) = check_header(name, value) {
                return Err(Error::invalid("target.headers", error.to_string()));
            }
        }
        Ok(())
    }

    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            let Target::Callback(callback) = &firing.message.target else {
                return Err(Undelivered::permanent("its target is not a callback"));
            };
            let called = self.call_back(&firing, callback).await;
            called.map_err(|error| {
                Undelivered::new(error.failure(), error.to_string()).kind(error.kind())
            })
        })
    }
}

impl Client {
    async fn call_back(&self, firing: &Firing, callback: &Callback) -> Result<(), CallError> {
        let (body, content_type) = self.body.of(firing)?;
        let message = &firing.message;
        let call = Call {
            id: message.id.as_str(),
            topic: &message.topic,
            due: firing.due(),
            attempt: firing.attempt(),
            url: &callback.url,
            method: callback.method,
            headers: &callback.headers,
            content_type,
            body,
            timeout: callback.timeout,
        };
        self.call(&call).await.map(drop)
    }
}

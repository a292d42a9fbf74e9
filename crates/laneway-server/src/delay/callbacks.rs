//! Messages that go to a URL.

use bytes::Bytes;
use laneway_delay::callback::{Call, Client, Next, Trouble};
use laneway_delay::{BoxFuture, Callback, Deliver, Firing, Message, Target, Undelivered};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Figures;
use crate::config::CallbackBody;
use crate::http::time::date;

/// Calls the receivers of what is due.
pub(super) struct Callbacks {
    pub(super) client: Client,
    pub(super) body: CallbackBody,
    pub(super) figures: Figures,
}

impl Deliver for Callbacks {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            let Target::Callback(callback) = &firing.message.target else {
                return Err(Undelivered::permanent("its target is not a callback"));
            };
            self.figures.started(&firing);
            let result = self.call(&firing, callback).await;
            self.figures.called(&result);
            result.map(drop).map_err(|trouble| undelivered(&trouble))
        })
    }
}

impl Callbacks {
    async fn call(
        &self,
        firing: &Firing,
        callback: &Callback,
    ) -> Result<laneway_delay::callback::Delivered, Trouble> {
        let message = &firing.message;
        let (body, content_type) = match self.body {
            CallbackBody::Payload => (
                message.payload.clone(),
                message
                    .content_type
                    .as_deref()
                    .unwrap_or("application/octet-stream"),
            ),
            CallbackBody::Envelope => (wrapped(firing)?, "application/json"),
        };
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
        self.client.call(&call).await
    }
}

fn undelivered(trouble: &Trouble) -> Undelivered {
    let failure = match trouble.next() {
        Next::Fail(failure) => failure,
        Next::Postpone(wait) => laneway_delay::Failure::Postponed(wait),
        _ => laneway_delay::Failure::Retry,
    };
    Undelivered {
        failure,
        reason: trouble.to_string(),
    }
}

/// The body with everything in it, so that one signature covers all.
#[derive(Serialize)]
struct Wrapped<'a> {
    id: &'a str,
    topic: &'a str,
    due: String,
    attempt: u32,
    metadata: &'a std::collections::BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn wrapped(firing: &Firing) -> Result<Bytes, Trouble> {
    use base64::Engine;
    let message: &Message = &firing.message;
    let payload = serde_json::from_slice::<&RawValue>(&message.payload).ok();
    let bytes = payload.is_none() && !message.payload.is_empty();
    let wrapped = Wrapped {
        id: message.id.as_str(),
        topic: &message.topic,
        due: date(firing.due()),
        attempt: firing.attempt(),
        metadata: &message.metadata,
        content_type: message.content_type.as_deref(),
        payload,
        payload_base64: bytes
            .then(|| base64::engine::general_purpose::STANDARD.encode(&message.payload)),
    };
    let json = serde_json::to_vec(&wrapped);
    json.map(Bytes::from)
        .map_err(|error| Trouble::Invalid(error.to_string()))
}

//! Every wait for the broker has an end.

use std::future::Future;
use std::time::Duration;

use super::error::Error;

/// How long a call to the broker may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimeout(pub(super) Duration);

impl CallTimeout {
    pub(super) async fn with<T, E: Into<Error>>(
        self,
        doing: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        let Self(limit) = self;
        match tokio::time::timeout(limit, call).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Error::TimedOut { doing, limit }),
        }
    }
}

use super::Service;

/// What became of one service that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The service asked for.
    pub(crate) service: Service,
    /// Whether it can be used, and how.
    pub(crate) state: State,
}

/// Whether a service can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It answered its health check.
    Ready {
        /// What [`Service::env_var`] is set to.
        address: String,
        /// The version it reports.
        version: String,
        /// Whose it is.
        source: Source,
        /// Everything the tests are told, the address among it.
        variables: Vec<(String, String)>,
    },
    /// It cannot be had here, or did not become healthy.
    Unavailable {
        /// The reason, in a sentence for the table.
        why: String,
    },
}

/// Whose server it is, and with that, who stops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Started by this very call.
    Started,
    /// Found running from an earlier `services up`.
    Reused,
    /// Named by the user through the environment; never stopped by us.
    Given,
}

impl Outcome {
    /// Whether the service can be used.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    pub(crate) fn unavailable(service: Service, why: impl Into<String>) -> Self {
        Self {
            service,
            state: State::Unavailable { why: why.into() },
        }
    }
}

/// The variables that hand the ready services to a test process.
pub(crate) fn environment(outcomes: &[Outcome]) -> Vec<(String, String)> {
    outcomes
        .iter()
        .filter_map(|outcome| match &outcome.state {
            State::Ready { variables, .. } => Some(variables.clone()),
            State::Unavailable { .. } => None,
        })
        .flatten()
        .collect()
}

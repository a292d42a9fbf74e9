//! Query parameters.

use std::collections::BTreeMap;

use laneway_delay::Timestamp;
use url::form_urlencoded;

use super::Problem;
use super::time::{Moment, seconds};

/// Parameters of a request, each known and given once.
#[derive(Debug, Default)]
pub(super) struct QueryParams(BTreeMap<String, String>);

/// Reads parameters, and refuses unknown ones.
pub(super) fn parse(text: Option<&str>, known: &[&str]) -> Result<QueryParams, Problem> {
    let mut params = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
        if !known.contains(&name.as_ref()) {
            let known = known.join(", ");
            let detail = format!("there is no such parameter; there are only {known}");
            return Err(Problem::malformed(Some(name.into_owned()), detail));
        }
        if params
            .insert(name.to_string(), value.into_owned())
            .is_some()
        {
            let detail = "it is there twice: send it once";
            return Err(Problem::malformed(Some(name.into_owned()), detail));
        }
    }
    Ok(QueryParams(params))
}

impl QueryParams {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether something is asked for: `true`, or `false` as if it were not there.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            Some("true") => Ok(true),
            None | Some("false") => Ok(false),
            Some(other) => {
                let detail = format!("`{other}` is neither true nor false");
                Err(Problem::invalid(name, detail))
            }
        }
    }

    pub(super) fn moment(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let moment = match text.parse() {
            Ok(0) => Ok(Moment(Timestamp::from_millis(0))),
            Ok(millis) => Moment::from_millis(millis).ok_or_else(|| seconds(millis)),
            Err(_) => Moment::parse(text)
                .ok_or_else(|| format!("`{text}` is not a date such as 2030-01-31T12:00:00Z")),
        };
        match moment {
            Ok(Moment(moment)) => Ok(Some(moment)),
            Err(detail) => Err(Problem::invalid(name, detail)),
        }
    }
}

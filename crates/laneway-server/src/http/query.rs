//! What is asked for after the question mark.

use std::collections::BTreeMap;

use laneway_delay::Timestamp;
use url::form_urlencoded;

use super::Problem;
use super::time::Moment;

/// Parameters of a request, each known and given once.
#[derive(Debug, Default)]
pub(super) struct Asked(BTreeMap<String, String>);

/// Reads parameters, and refuses those that nobody knows.
pub(super) fn parse(text: Option<&str>, known: &[&str]) -> Result<Asked, Problem> {
    let mut asked = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
        if !known.contains(&name.as_ref()) {
            let known = known.join(", ");
            let detail = format!("there is no such parameter; there are only {known}");
            return Err(Problem::malformed(Some(name.into_owned()), detail));
        }
        if asked.insert(name.to_string(), value.into_owned()).is_some() {
            let detail = "it is there twice: send it once";
            return Err(Problem::malformed(Some(name.into_owned()), detail));
        }
    }
    Ok(Asked(asked))
}

impl Asked {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn moment(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let millis = text.parse().ok().map(Timestamp::from_millis);
        let moment = millis.or_else(|| Moment::parse(text).map(|Moment(moment)| moment));
        moment.map(Some).ok_or_else(|| {
            let detail = format!("`{text}` is not a date such as 2030-01-31T12:00:00Z");
            Problem::invalid(name, detail)
        })
    }
}

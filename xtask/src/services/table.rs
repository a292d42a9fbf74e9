//! What people see: which service, where, and if not, why not.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};

use super::ensure::{check, given, one_line};
use super::ledger::Ledger;
use super::probe::{probe, without_password};
use super::{Outcome, Service, Source, State, ensure};

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    service: Service,
    version: String,
    address: String,
    state: &'static str,
    why_not: String,
    /// Something that should work does not.
    pub(crate) is_trouble: bool,
}

impl Row {
    fn well(service: Service, version: &str, address: &str, state: &'static str) -> Self {
        Self {
            service,
            version: version.to_owned(),
            address: address.to_owned(),
            state,
            why_not: String::new(),
            is_trouble: false,
        }
    }

    fn unwell(service: Service, state: &'static str, why_not: String) -> Self {
        Self {
            service,
            version: String::new(),
            address: String::new(),
            state,
            why_not,
            is_trouble: true,
        }
    }

    pub(crate) fn of_outcome(outcome: &Outcome) -> Self {
        match &outcome.state {
            State::Ready {
                address,
                version,
                source,
                ..
            } => {
                let state = match source {
                    Source::Started => "started",
                    Source::Reused => "running",
                    Source::Given => "given",
                };
                Self::well(outcome.service, version, address, state)
            }
            State::Unavailable { why } => Self::unwell(outcome.service, "unavailable", why.clone()),
        }
    }

    /// How a service is doing right now.
    pub(crate) fn of_now(service: Service, ledger: &Ledger) -> Self {
        if let Some(address) = given(service) {
            return match probe(service, &address, ensure::ANSWER) {
                Ok(version) => {
                    let version = version.unwrap_or_else(|| "unknown".to_owned());
                    Self::well(service, &version, &address, "given")
                }
                Err(error) => Self {
                    address,
                    ..Self::unwell(service, "given, not answering", one_line(&error))
                },
            };
        }
        if let Some(entry) = ledger.entry(service) {
            return match check(entry) {
                Ok(reached) => Self::well(service, &reached.version, &reached.address, "running"),
                Err(error) => {
                    let state = match (entry.first_dead(), &entry.reached) {
                        (Some(_), _) => "dead",
                        (None, Some(_)) => "not answering",
                        (None, None) => "starting",
                    };
                    let reached = entry.reached.as_ref();
                    Self {
                        version: reached.map(|it| it.version.clone()).unwrap_or_default(),
                        address: reached.map(|it| it.address.clone()).unwrap_or_default(),
                        ..Self::unwell(service, state, one_line(&error))
                    }
                }
            };
        }
        match ledger.unavailable.get(&service) {
            Some(why) => Self::unwell(service, "unavailable", why.clone()),
            None => Self::well(service, "", "", "down"),
        }
    }
}

pub(crate) fn render(rows: &[Row]) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["service", "version", "address", "state", "why not"]);
    // Elsewhere than on a terminal lines stay whole, for grep's sake.
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout()) {
        table.set_width(size.ws_col);
    }
    for row in rows {
        // Several addresses go below each other.
        let addresses: Vec<String> = row.address.split(',').map(without_password).collect();
        let address = addresses.join("\n");
        table.add_row([
            row.service.name(),
            &row.version,
            &address,
            row.state,
            &row.why_not,
        ]);
    }
    table.trim_fmt()
}

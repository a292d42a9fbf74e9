//! Answers for people.

use std::fmt::Write;
use std::time::SystemTime;

use comfy_table::{ContentArrangement, Table, presets};
use laneway_delay::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::server::Answer;
use crate::http::time::Moment;

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

/// What became of a submission or a replay.
pub(super) fn accepted(answer: &Answer) -> String {
    let answer = &answer.value;
    let duplicate = answer.get("duplicate").and_then(Value::as_bool) == Some(true);
    let verb = if duplicate {
        "was there already"
    } else {
        "accepted"
    };
    // One that has ended does not fire again, however it was asked for.
    let state = match text(answer, "state") {
        "" | "scheduled" => String::new(),
        state => format!("; it is {state}, and --replace plans it anew"),
    };
    format!(
        "{verb}: {}, due {}{state}\n",
        text(answer, "id"),
        moment(text(answer, "due"))
    )
}

/// A message after a change.
pub(super) fn changed(verb: &str, answer: &Answer) -> String {
    let answer = &answer.value;
    format!(
        "{verb}: {}, due {}\n",
        text(answer, "id"),
        moment(text(answer, "due"))
    )
}

/// A message that was taken back, or stopped.
pub(super) fn withdrawn(answer: &Answer) -> String {
    if in_doubt(&answer.value) {
        let stopped = changed("stopped", answer);
        format!("{}; it may have been delivered\n", stopped.trim_end())
    } else {
        changed("withdrawn", answer)
    }
}

fn in_doubt(message: &Value) -> bool {
    message.get("may_have_been_delivered") == Some(&Value::Bool(true))
}

/// Puts the messages of one list before those of another.
pub(super) fn put_first(answer: &mut Answer, first: Answer) {
    let mut first = first.value;
    let first = first.get_mut("messages").and_then(Value::as_array_mut);
    let rest = answer
        .value
        .get_mut("messages")
        .and_then(Value::as_array_mut);
    if let (Some(first), Some(rest)) = (first, rest) {
        rest.splice(..0, first.drain(..));
    }
}

/// A list of messages.
pub(super) fn messages(answer: &Answer) -> String {
    let answer = &answer.value;
    let none = Vec::new();
    let messages = answer
        .get("messages")
        .and_then(Value::as_array)
        .unwrap_or(&none);
    if messages.is_empty() {
        return "no messages\n".to_owned();
    }
    let mut table = table();
    let has_errors = messages
        .iter()
        .any(|message| message.get("last_error").is_some());
    let mut header = vec!["ID", "TOPIC", "STATE", "DUE", "ATTEMPTS", "TARGET"];
    if has_errors {
        header.push("LAST ERROR");
    }
    table.set_header(header);
    for message in messages {
        let mut row = vec![
            text(message, "id").to_owned(),
            text(message, "topic").to_owned(),
            text(message, "state").to_owned(),
            due(message),
            number(message, "attempts"),
            target(message),
        ];
        if has_errors {
            row.push(text(message, "last_error").to_owned());
        }
        table.add_row(row);
    }
    let mut shown = format!("{table}\n");
    if let Some(next) = answer.get("next").and_then(Value::as_str) {
        let _ = writeln!(shown, "there are more: --after {next}");
    }
    shown
}

/// When it is due, or when it is tried again.
fn due(message: &Value) -> String {
    match text(message, "next_attempt") {
        "" => moment(text(message, "due")),
        next => format!("{}, again", moment(next)),
    }
}

/// The payload, as it came.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

/// One message with its history.
pub(super) fn message(answer: &Answer) -> String {
    let payload: Option<Payload<'_>> = serde_json::from_str(&answer.text).ok();
    let payload = payload.and_then(|payload| payload.payload);
    let answer = &answer.value;
    let mut table = table();
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.add_row([name.to_owned(), value]);
        }
    };
    row("id", text(answer, "id").to_owned());
    row("topic", text(answer, "topic").to_owned());
    row("state", text(answer, "state").to_owned());
    row("cause", text(answer, "cause").to_owned());
    if in_doubt(answer) {
        row("delivered", "perhaps: an attempt gave no answer".to_owned());
    }
    row("due", moment(text(answer, "due")));
    row("next attempt", moment(text(answer, "next_attempt")));
    row("ended", moment(text(answer, "ended")));
    row("accepted", moment(text(answer, "accepted")));
    row("attempts", number(answer, "attempts"));
    row("target", target(answer));
    row("content type", text(answer, "content_type").to_owned());
    row(
        "payload",
        payload.map(RawValue::to_string).unwrap_or_default(),
    );
    row(
        "payload (base64)",
        text(answer, "payload_base64").to_owned(),
    );
    row(
        "metadata",
        answer
            .get("metadata")
            .map(Value::to_string)
            .unwrap_or_default(),
    );
    let none = Vec::new();
    let history = answer
        .get("history")
        .and_then(Value::as_array)
        .unwrap_or(&none);
    for event in history {
        let attempt = number(event, "attempt");
        let attempt = if attempt.is_empty() {
            attempt
        } else {
            format!(" (attempt {attempt})")
        };
        let about = [text(event, "reason"), text(event, "due"), text(event, "of")].concat();
        let about = if about.is_empty() {
            about
        } else {
            format!(": {about}")
        };
        row(
            text(event, "at"),
            format!("{}{attempt}{about}", text(event, "what")),
        );
    }
    format!("{table}\n")
}

fn table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// A table with these columns.
pub(super) fn rows(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = table();
    table.set_header(columns.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    format!("{table}\n")
}

pub(super) fn number(value: &Value, name: &str) -> String {
    value.get(name).map(Value::to_string).unwrap_or_default()
}

fn target(message: &Value) -> String {
    let target = message.get("target").unwrap_or(&Value::Null);
    if let Some(callback) = target.get("callback") {
        return format!("{} {}", text(callback, "method"), text(callback, "url"));
    }
    match target.get("bus") {
        Some(bus) => format!("bus {} {}", text(bus, "topic"), text(bus, "aggregate_id")),
        None => String::new(),
    }
}

/// A date, and how far away it is.
fn moment(date: &str) -> String {
    match Moment::parse(date) {
        Some(Moment(moment)) => format!("{date} ({})", distance(moment, SystemTime::now().into())),
        None => date.to_owned(),
    }
}

fn distance(moment: Timestamp, now: Timestamp) -> String {
    let ahead = moment > now;
    let span = if ahead {
        moment.since(now)
    } else {
        now.since(moment)
    };
    // The two largest units say enough.
    let seconds = span.as_secs();
    let shown = match seconds {
        0 => laneway_units::format_duration(std::time::Duration::from_millis(u64::from(
            span.subsec_millis(),
        ))),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    };
    if ahead {
        format!("in {shown}")
    } else {
        format!("{shown} ago")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_short_and_say_the_direction() {
        let now = Timestamp::from_millis(1_000_000_000);
        for (millis, expected) in [
            (0, "0s ago"),
            (250, "in 250ms"),
            (59_999, "in 59s"),
            (61_000, "in 1m 1s"),
            (3_660_000, "in 1h 1m"),
            (90_000_000, "in 1d 1h"),
        ] {
            let moment = Timestamp::from_millis(now.as_millis() + millis);
            assert_eq!(distance(moment, now), expected);
        }
        assert_eq!(distance(Timestamp::from_millis(999_999_000), now), "1s ago");
    }
}

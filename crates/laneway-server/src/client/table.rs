//! Answers for people.

use std::fmt::Write;
use std::time::SystemTime;

use comfy_table::{ContentArrangement, Table, presets};
use laneway_delay::Timestamp;
use serde_json::Value;

use crate::config::value::show_time;
use crate::http::time::Moment;

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

/// What became of a submission or a replay.
pub(super) fn accepted(answer: &Value) -> String {
    let duplicate = answer.get("duplicate").and_then(Value::as_bool) == Some(true);
    let verb = if duplicate {
        "was there already"
    } else {
        "accepted"
    };
    format!(
        "{verb}: {}, due {}\n",
        text(answer, "id"),
        moment(text(answer, "due"))
    )
}

/// A message after a change.
pub(super) fn changed(verb: &str, answer: &Value) -> String {
    format!(
        "{verb}: {}, due {}\n",
        text(answer, "id"),
        moment(text(answer, "due"))
    )
}

/// A list of messages.
pub(super) fn messages(answer: &Value) -> String {
    let none = Vec::new();
    let messages = answer
        .get("messages")
        .and_then(Value::as_array)
        .unwrap_or(&none);
    if messages.is_empty() {
        return "no messages\n".to_owned();
    }
    let mut table = table();
    table.set_header(["ID", "TOPIC", "STATE", "DUE", "ATTEMPTS", "TARGET"]);
    for message in messages {
        table.add_row([
            text(message, "id").to_owned(),
            text(message, "topic").to_owned(),
            text(message, "state").to_owned(),
            moment(text(message, "due")),
            number(message, "attempts"),
            target(message),
        ]);
    }
    let mut shown = format!("{table}\n");
    if let Some(next) = answer.get("next").and_then(Value::as_str) {
        let _ = writeln!(shown, "there are more: --after {next}");
    }
    shown
}

/// One message with its history.
pub(super) fn message(answer: &Value) -> String {
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
    row("due", moment(text(answer, "due")));
    row("next attempt", moment(text(answer, "next_attempt")));
    row("ended", moment(text(answer, "ended")));
    row("accepted", moment(text(answer, "accepted")));
    row("attempts", number(answer, "attempts"));
    row("target", target(answer));
    row("content type", text(answer, "content_type").to_owned());
    row(
        "payload",
        answer
            .get("payload")
            .map(Value::to_string)
            .unwrap_or_default(),
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

fn number(value: &Value, name: &str) -> String {
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
        0 => show_time(span),
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

//! What must hold, judged from outside: by what clients were told, and what came to the receiver.

use std::collections::{BTreeMap, BTreeSet};

use super::clients::FAR;
use super::ledger::{Asked, Given, Message, Millis, What};
use super::log::Told;
use super::receiver::Start;
use super::stage::Window;
use crate::verdict::Verdict;

/// Due work has to be done so long after the last heal.
pub(super) const SETTLED_WITHIN: Millis = 30_000;

/// An attempt is begun up to 50 ms before it is due: nothing can be taken back from then on.
const BEGUN_BEFORE: Millis = 100;

/// At most so many stories are told of each kind.
const STORIES: usize = 3;

/// All that was seen.
pub(super) struct Seen<'a> {
    pub(super) messages: &'a [Message],
    pub(super) starts: &'a [Start],
    pub(super) windows: &'a [Window],
    /// When the last fault was healed, and the end of it all.
    pub(super) healed: Millis,
    pub(super) ended: Millis,
}

/// How many of a hundred submits that no fault touched were accepted.
pub(super) const ACCEPTED: &str = "of a hundred of them accepted";

/// What must not be, by name, with the stories.
#[derive(Default)]
struct Found(BTreeMap<&'static str, Vec<String>>);

impl Found {
    fn add(&mut self, name: &'static str, story: impl FnOnce() -> String) {
        let stories = self.0.entry(name).or_default();
        let story = if stories.len() < STORIES {
            story()
        } else {
            String::new()
        };
        stories.push(story);
    }
}

const LOST: &str = "accepted and lost";
const EARLY: &str = "early";
const AFTER_YES: &str = "started although withdrawn";
const AFTER_EXTEND: &str = "started before the extended time";
const NOT_FOUND: &str = "404 for what was accepted";
const NO_TOO_SOON: &str = "409 before it was due";
const OTHER_ANSWER: &str = "two answers to one submit";
const UNASKED: &str = "started without being asked for";
const REPEATED: &str = "one attempt twice";
const UNEXCUSED: &str = "duplicates without a fault";
const OTHER_STATE: &str = "another state than what was seen";
const DEAD: &str = "dead";

const ALL: [&str; 12] = [
    LOST,
    EARLY,
    AFTER_YES,
    AFTER_EXTEND,
    NOT_FOUND,
    NO_TOO_SOON,
    OTHER_ANSWER,
    UNASKED,
    REPEATED,
    UNEXCUSED,
    OTHER_STATE,
    DEAD,
];

/// The verdict.
pub(super) fn judge(seen: &Seen<'_>) -> Verdict {
    let mut found = Found::default();
    let mut of: BTreeMap<&str, Vec<&Start>> = BTreeMap::new();
    for start in seen.starts {
        of.entry(&start.id).or_default().push(start);
    }
    let mut accepted = BTreeSet::new();
    for message in seen.messages {
        let Some(yes) = message.accepted() else {
            continue;
        };
        let id = yes.id.as_deref().unwrap_or_default();
        accepted.insert(id);
        let starts = of.get(id).map_or(&[][..], Vec::as_slice);
        judge_one(seen, message, yes, starts, &mut found);
    }
    for (id, starts) in &of {
        judge_starts(seen, starts, &mut found);
        if !accepted.contains(id) {
            let message = seen.messages.get(starts[0].tag);
            let may_be = message.is_some_and(|message| {
                let mut asked = message.asked.iter();
                asked.any(|asked| asked.what == What::Submit && asked.is_error())
            });
            if !may_be {
                found.add(UNASKED, || format!("{starts:?}"));
            }
        }
    }
    tell(seen, &of, &accepted, &found)
}

fn story(message: &Message, starts: &[&Start]) -> String {
    let mut lines: Vec<(Millis, String)> = Vec::new();
    for asked in &message.asked {
        lines.push((asked.sent, asked.to_string()));
    }
    for start in starts {
        lines.push((start.at, format!("{start:?}")));
    }
    lines.sort();
    let lines = lines.into_iter().map(|(_, line)| format!("\n    {line}"));
    let Message { given, delay, .. } = message;
    format!(
        "given {given:?}, delay {delay} ms{}",
        lines.collect::<String>()
    )
}

fn judge_one(
    seen: &Seen<'_>,
    message: &Message,
    yes: &Asked,
    starts: &[&Start],
    found: &mut Found,
) {
    let told = || story(message, starts);
    let yes_to = |what| {
        let asked = message.asked.iter();
        asked.filter(move |asked| asked.what == what && asked.is_yes())
    };
    let due = promised(message, yes);
    let last_due = yes_to(What::Extend)
        .filter_map(|it| it.due)
        .fold(due, Millis::max);

    if starts.iter().any(|start| start.at < due) {
        found.add(EARLY, told);
    }
    for extended in yes_to(What::Extend) {
        let new = extended.due.unwrap_or_default();
        let is_wrong =
            |start: &&Start| start.at < new && (start.is_good || start.at > extended.answered);
        if starts.iter().any(is_wrong) {
            found.add(AFTER_EXTEND, told);
        }
    }
    for withdrawn in yes_to(What::Withdraw) {
        let may_be = |state: &str| state == "withdrawn" || state.is_empty();
        let is_wrong = |start: &&Start| start.is_good || start.at > withdrawn.answered;
        if !may_be(&withdrawn.state) || starts.iter().any(is_wrong) {
            found.add(AFTER_YES, told);
        }
    }
    for submit in yes_to(What::Submit) {
        // For a proxy no verdict is awaited.
        let is_same_due = submit.due == yes.due || message.given == Given::Request;
        let is_moved = yes_to(What::Extend).next().is_some();
        let is_new =
            submit.sent >= yes.answered && !submit.is_duplicate && message.given != Given::Request;
        if submit.id != yes.id || is_new || !(is_same_due || is_moved) {
            found.add(OTHER_ANSWER, told);
        }
    }
    let is_after = |asked: &&Asked| asked.sent > yes.answered;
    for asked in message.asked.iter().filter(is_after) {
        match asked.status {
            404 => found.add(NOT_FOUND, told),
            409 if matches!(asked.what, What::Withdraw | What::Extend) => {
                let mut before = message.asked.iter();
                let is_taken_back = before.any(|it| {
                    matches!(it.what, What::Withdraw | What::Stop) && it.sent < asked.sent
                });
                if asked.answered + BEGUN_BEFORE < due && !is_taken_back {
                    found.add(NO_TOO_SOON, told);
                }
            }
            _ => {}
        }
    }
    judge_end(seen, message, last_due, starts, found);
}

/// Before this it must not start. What a proxy sends again is due as if it came for the first time, and the first one counts.
fn promised(message: &Message, yes: &Asked) -> Millis {
    let due = yes.due.unwrap_or_default();
    let first = message.asked.iter().map(|asked| asked.sent).min();
    match (message.given, first) {
        (Given::Request, Some(first)) => due.min(first + message.delay),
        _ => due,
    }
}

/// What became of it in the end.
fn judge_end(
    seen: &Seen<'_>,
    message: &Message,
    last_due: Millis,
    starts: &[&Start],
    found: &mut Found,
) {
    let told = || story(message, starts);
    let last = message.asked.iter().rfind(|it| it.what == What::LookUp);
    let state = last.map_or("", |last| last.state.as_str());
    let is_delivered = starts.iter().any(|start| start.is_good);
    // One without an answer may have been done, too.
    let may_be_taken_back = message.asked.iter().any(|asked| {
        matches!(asked.what, What::Withdraw | What::Stop) && (asked.is_yes() || asked.is_error())
    });
    let is_taken_back = may_be_taken_back && matches!(state, "withdrawn" | "stopped");
    // An extend without an answer may have moved it.
    let may_be_later = message
        .asked
        .iter()
        .any(|asked| asked.what == What::Extend && asked.is_error());
    let is_due = last_due.max(seen.healed) + SETTLED_WITHIN <= seen.ended;
    let is_due = is_due && message.delay < FAR && !(may_be_later && state == "scheduled");
    if is_due && !is_delivered && !is_taken_back {
        found.add(LOST, told);
    }
    match state {
        "dead" => found.add(DEAD, told),
        "delivered" if !is_delivered => found.add(OTHER_STATE, told),
        "withdrawn" | "stopped" if !may_be_taken_back => found.add(OTHER_STATE, told),
        "scheduled" | "firing" if is_due && is_delivered => found.add(OTHER_STATE, told),
        _ => {}
    }
}

/// What the receiver saw by itself.
fn judge_starts(seen: &Seen<'_>, starts: &[&Start], found: &mut Found) {
    let mut attempts = BTreeSet::new();
    for start in starts {
        if !attempts.insert(start.attempt) {
            found.add(REPEATED, || format!("{starts:?}"));
        }
    }
    for (before, after) in duplicates(starts) {
        let mut windows = seen.windows.iter();
        if !windows.any(|window| window.touches(before.at, after.at)) {
            found.add(UNEXCUSED, || format!("{starts:?}"));
        }
    }
}

/// Every start after a good one, with the good one.
fn duplicates<'a>(starts: &'a [&Start]) -> impl Iterator<Item = (&'a Start, &'a Start)> {
    let good = starts.iter().position(|start| start.is_good);
    let good = good.map(|good| (starts[good], &starts[good + 1..]));
    good.into_iter()
        .flat_map(|(good, rest)| rest.iter().map(move |start| (good, *start)))
}

fn tell(
    seen: &Seen<'_>,
    of: &BTreeMap<&str, Vec<&Start>>,
    accepted: &BTreeSet<&str>,
    found: &Found,
) -> Verdict {
    let is_calm = |from: Millis, until: Millis| {
        let mut windows = seen.windows.iter();
        !windows.any(|window| window.touches(from, until))
    };
    let asked = || seen.messages.iter().flat_map(|message| &message.asked);
    let calm: Vec<&Asked> = asked()
        .filter(|it| it.what == What::Submit && is_calm(it.sent, it.answered))
        .collect();
    let good = calm.iter().filter(|it| it.is_yes()).count();
    let duplicated: Vec<(&Start, &Start)> =
        of.values().flat_map(|starts| duplicates(starts)).collect();
    let only_graceful = duplicated.iter().filter(|(before, after)| {
        let mut touched = seen.windows.iter();
        let mut touched = touched
            .by_ref()
            .filter(|it| it.touches(before.at, after.at))
            .peekable();
        touched.peek().is_some() && touched.all(|it| it.is_graceful)
    });
    let count = |what: What| asked().filter(|it| it.what == what && it.is_yes()).count() as u64;
    let errors = asked().filter(|it| it.is_error()).count();
    let last_done = of
        .values()
        .filter_map(|starts| starts.iter().find(|it| it.is_good));
    let last_done = last_done.map(|start| start.at).max().unwrap_or_default();
    let mut verdict = Verdict::new()
        .count("messages", seen.messages.len() as u64)
        .count("accepted", accepted.len() as u64)
        .count("starts", seen.starts.len() as u64)
        .count("withdrawn", count(What::Withdraw))
        .count("extended", count(What::Extend))
        .count("looked up", count(What::LookUp))
        .count("asked without an answer", errors as u64)
        .count("duplicates after a fault", duplicated.len() as u64)
        .count(
            "duplicates after a stop in good order only",
            only_graceful.count() as u64,
        )
        .count(
            "ms from the last heal to the last delivery",
            last_done.saturating_sub(seen.healed),
        )
        .count("submits outside faults", calm.len() as u64)
        .count(ACCEPTED, percent(good, calm.len()))
        .must_be("bad answers at the end", bad_at_the_end(seen), 0);
    for name in ALL {
        let stories = found.0.get(name).map_or(&[][..], Vec::as_slice);
        verdict = verdict.must_be(name, stories.len() as u64, 0);
        for story in stories.iter().filter(|story| !story.is_empty()) {
            verdict = verdict.detail(format!("{name}: {story}"));
        }
    }
    verdict
}

/// What the log says beside it.
pub(super) fn judge_log(verdict: Verdict, told: &Told, starts: &[Start]) -> Verdict {
    let wrong = told.check(starts);
    let mut verdict = verdict
        .count("records of the log", told.records)
        .count("owners in the log", told.owners)
        .count("records that do not count", told.void)
        .must_be("facts of two reigns in one epoch", told.second_reigns, 0)
        .must_be(
            "started without being begun in the log",
            wrong.not_begun.len() as u64,
            0,
        )
        .must_be(
            "started by an owner of the past",
            wrong.backwards.len() as u64,
            0,
        )
        .must_be("logs that cannot be read", told.stopped.len() as u64, 0);
    for start in wrong.not_begun.iter().take(STORIES) {
        verdict = verdict.detail(format!("not begun in the log: {start:?}"));
    }
    for (before, start) in wrong.backwards.iter().take(STORIES) {
        verdict = verdict.detail(format!("{before:?} and then, of an older epoch, {start:?}"));
    }
    told.stopped.iter().fold(verdict, Verdict::detail)
}

fn percent(part: usize, whole: usize) -> u64 {
    (part * 100 / whole.max(1)) as u64
}

/// Of the last 20 answers of every receive, those that are errors.
fn bad_at_the_end(seen: &Seen<'_>) -> u64 {
    let mut of: BTreeMap<usize, Vec<&Asked>> = BTreeMap::new();
    for asked in seen.messages.iter().flat_map(|message| &message.asked) {
        of.entry(asked.to).or_default().push(asked);
    }
    let mut bad = 0;
    for asked in of.values_mut() {
        asked.sort_by_key(|asked| asked.answered);
        let last = asked.iter().rev().take(20);
        bad += last.filter(|asked| asked.is_error()).count() as u64;
    }
    bad
}

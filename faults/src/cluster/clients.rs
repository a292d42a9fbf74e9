//! Clients: they submit, change their minds, look, and ask again where there was no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::http::{Answer, Request, ask};
use super::ledger::{Asked, Given, Ledger, Millis, What, now};

/// One try.
const TRY_LIMIT: Duration = Duration::from_secs(8);
/// A client gives up after that.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSES: [u64; 4] = [50, 200, 500, 1_000];
/// A message that is due this late is looked up in the end, or taken back.
pub(super) const FAR: Millis = 3_600_000;

/// What all clients share.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) receives: Vec<u16>,
    pub(super) callback: String,
    pub(super) ledger: Ledger,
    pub(super) seed: u64,
    /// The longest usual delay.
    pub(super) longest: Millis,
    /// The most messages of a batch.
    pub(super) largest_batch: usize,
    pub(super) is_over: AtomicBool,
    pub(super) names: AtomicUsize,
}

/// A message that is not accepted yet.
struct Draft {
    tag: usize,
    body: Value,
    headers: String,
}

impl Clients {
    /// One client, until it is over; then it ends what it has begun.
    pub(super) async fn live(self: Arc<Self>, number: u64) {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (number << 32));
        let mut flows = JoinSet::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let seed = dice.random();
            let flow = self.clone();
            if dice.random_bool(0.2) {
                flows.spawn(async move { flow.batch(seed).await });
            } else {
                flows.spawn(async move { flow.single(seed).await });
            }
            while flows.try_join_next().is_some() {}
            sleep(Duration::from_millis(dice.random_range(50..950))).await;
        }
        while flows.join_next().await.is_some() {}
    }

    fn draft(&self, dice: &mut StdRng, given: Given) -> Draft {
        let delay = match dice.random_range(0..20) {
            0 => FAR,
            1..5 => dice.random_range(0..200),
            _ => dice.random_range(200..self.longest),
        };
        let tag = self.ledger.add(given, delay);
        let mut body = json!({
            "topic": "faults",
            "delay": format!("{delay}ms"),
            "payload": { "tag": tag },
            "retry": vec!["300ms"; 30],
            "target": { "callback": { "url": self.callback } },
        });
        let mut headers = String::new();
        let name = self.names.fetch_add(1, Ordering::Relaxed);
        match given {
            Given::Nothing => {}
            Given::Id => body["id"] = json!(format!("id-{}-{name}", self.seed)),
            Given::Key => body["idempotency_key"] = json!(format!("key-{name}")),
            Given::Request => headers = format!("laneway-request-id: r-{}-{name}\r\n", self.seed),
        }
        Draft { tag, body, headers }
    }

    async fn single(self: Arc<Self>, seed: u64) {
        let mut dice = StdRng::seed_from_u64(seed);
        let kinds = [Given::Nothing, Given::Id, Given::Key, Given::Request];
        let given = kinds[dice.random_range(0..kinds.len())];
        let draft = self.draft(&mut dice, given);
        let body = draft.body.to_string();
        let request = Request {
            method: "POST",
            path: "/v1/messages",
            headers: &draft.headers,
            body: &body,
        };
        let accepted = self
            .insist(draft.tag, What::Submit, &request, &mut dice)
            .await;
        let Some(id) = accepted.filter(Asked::is_yes).and_then(|asked| asked.id) else {
            return;
        };
        if given != Given::Nothing && dice.random_bool(0.1) {
            self.insist(draft.tag, What::Submit, &request, &mut dice)
                .await;
        }
        self.follow_up(draft.tag, &id, &mut dice).await;
    }

    /// What a client does with a message that was accepted.
    async fn follow_up(&self, tag: usize, id: &str, dice: &mut StdRng) {
        if dice.random_bool(0.4) {
            return;
        }
        for _ in 0..dice.random_range(1..4) {
            sleep(Duration::from_millis(dice.random_range(0..self.longest))).await;
            let path = format!("/v1/messages/{id}");
            let (what, path, body) = match dice.random_range(0..10) {
                0..4 => (What::LookUp, path, String::new()),
                4..6 => (What::Withdraw, path, String::new()),
                6 => (What::Stop, format!("{path}?stop=true"), String::new()),
                7 => {
                    let by = dice.random_range(500..4_000);
                    let body = json!({ "by": format!("{by}ms") });
                    (What::Extend, format!("{path}/extend"), body.to_string())
                }
                _ => {
                    let to = now() + dice.random_range(1_000..self.longest + 2_000);
                    let to = laneway::Timestamp::from_millisecond(to.cast_signed());
                    let body = json!({ "to": to.map(|to| to.to_string()).unwrap_or_default() });
                    (What::Extend, format!("{path}/extend"), body.to_string())
                }
            };
            let method = match what {
                What::LookUp => "GET",
                What::Withdraw | What::Stop => "DELETE",
                What::Submit | What::Extend => "POST",
            };
            let request = Request {
                method,
                path: &path,
                headers: "",
                body: &body,
            };
            self.insist(tag, what, &request, dice).await;
        }
    }

    /// Asks until there is an answer that is one, each time another receive.
    async fn insist(
        &self,
        tag: usize,
        what: What,
        request: &Request<'_>,
        dice: &mut StdRng,
    ) -> Option<Asked> {
        let deadline = Instant::now() + PATIENCE;
        let mut to = dice.random_range(0..self.receives.len());
        for pause in PAUSES.into_iter().chain(std::iter::repeat(1_000)) {
            let (sent, answer) = self.try_once(to, request).await;
            let asked = Asked::new(what, to, sent, answer.as_ref());
            self.ledger.note(tag, asked.clone());
            if !asked.is_error() {
                return Some(asked);
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(Duration::from_millis(pause)).await;
            to = (to + 1) % self.receives.len();
        }
        None
    }

    async fn try_once(&self, to: usize, request: &Request<'_>) -> (Millis, Option<Answer>) {
        let sent = now();
        let answer = ask(self.receives[to], request, TRY_LIMIT).await;
        (sent, answer.ok())
    }

    /// Many at once; what had no answer is sent again, together.
    async fn batch(self: Arc<Self>, seed: u64) {
        let mut dice = StdRng::seed_from_u64(seed);
        let kinds = [Given::Nothing, Given::Id, Given::Key];
        let given = kinds[dice.random_range(0..kinds.len())];
        let count = dice.random_range(2..self.largest_batch);
        let mut left: Vec<Draft> = (0..count).map(|_| self.draft(&mut dice, given)).collect();
        let mut ids = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let mut to = dice.random_range(0..self.receives.len());
        while !left.is_empty() && Instant::now() < deadline {
            let bodies: Vec<&Value> = left.iter().map(|draft| &draft.body).collect();
            let tags: Vec<usize> = left.iter().map(|draft| draft.tag).collect();
            let body = json!({ "messages": bodies });
            let told = self
                .all("/v1/messages:batch", &body, to, What::Submit, &tags)
                .await;
            let mut again = Vec::new();
            for (draft, asked) in left.into_iter().zip(told) {
                match asked.id {
                    Some(id) if (200..300).contains(&asked.status) => ids.push((draft.tag, id)),
                    _ if asked.status == 0 || asked.status >= 500 => again.push(draft),
                    _ => {}
                }
            }
            left = again;
            to = (to + 1) % self.receives.len();
            if !left.is_empty() {
                sleep(Duration::from_millis(500)).await;
            }
        }
        if ids.is_empty() || dice.random_bool(0.5) {
            return;
        }
        sleep(Duration::from_millis(dice.random_range(0..self.longest))).await;
        let (tags, ids): (Vec<usize>, Vec<String>) =
            ids.into_iter().filter(|_| dice.random_bool(0.3)).unzip();
        if dice.random_bool(0.5) {
            let body = json!({ "ids": ids });
            self.all("/v1/messages:withdraw", &body, to, What::Withdraw, &tags)
                .await;
        } else {
            let by = format!("{}ms", dice.random_range(500..4_000));
            let extends: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "by": by })).collect();
            let body = json!({ "messages": extends });
            self.all("/v1/messages:extend", &body, to, What::Extend, &tags)
                .await;
        }
    }

    /// Asks about many at once.
    async fn all(
        &self,
        path: &str,
        body: &Value,
        to: usize,
        what: What,
        tags: &[usize],
    ) -> Vec<Asked> {
        let body = body.to_string();
        let request = Request {
            method: "POST",
            path,
            headers: "",
            body: &body,
        };
        let (sent, answer) = self.try_once(to, &request).await;
        let is_there = answer.as_ref().is_some_and(|answer| answer.status < 300);
        let told: Vec<Asked> = tags
            .iter()
            .enumerate()
            .map(|(index, tag)| {
                let asked = match &answer {
                    Some(answer) if is_there => {
                        let one = &answer.body["results"][index];
                        let status = one["status"].as_u64().map(u16::try_from);
                        let status = status.and_then(Result::ok).unwrap_or(answer.status);
                        Asked::of(what, to, sent, status, one)
                    }
                    other => Asked::new(what, to, sent, other.as_ref()),
                };
                self.ledger.note(*tag, asked.clone());
                asked
            })
            .collect();
        told
    }

    /// Looks at everything that was accepted, once more.
    pub(super) async fn look_again(self: Arc<Self>) {
        let mut looks = JoinSet::new();
        let messages = self.ledger.all();
        let accepted = messages.iter().enumerate().filter_map(|(tag, message)| {
            let id = message.accepted()?.id.clone()?;
            Some((tag, id))
        });
        for (tag, id) in accepted {
            if looks.len() >= 16 {
                looks.join_next().await;
            }
            let this = self.clone();
            looks.spawn(async move {
                let mut dice = StdRng::seed_from_u64(tag as u64);
                let path = format!("/v1/messages/{id}");
                let request = Request {
                    method: "GET",
                    path: &path,
                    ..Request::default()
                };
                this.insist(tag, What::LookUp, &request, &mut dice).await;
            });
        }
        while looks.join_next().await.is_some() {}
    }
}

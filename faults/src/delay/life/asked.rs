//! What is asked for beside submitting, moving and taking back: keys, and messages that may have been delivered.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laneway_delay::clock::Clock;
use laneway_delay::{Error, Schedule, State, Target, When, Withdraw};
use rand::RngExt;

use super::witness::is_refused;
use super::world::{Life, PATIENCE, World};

impl World {
    /// A message under a key, without an id.
    pub(super) async fn submit_with_key(&mut self) {
        let tag = self.fresh_tag();
        let when = self.some_due();
        let key = format!("k{tag}");
        let mut submission = self.submission("none", tag, when).idempotency_key(key);
        submission.id = None;
        match self.delays.submit_one(submission.clone()).await {
            Ok(accepted) => {
                let id = accepted.id.clone();
                self.note(id.as_str(), tag, Ok(accepted));
                self.keys.push((id, submission));
            }
            Err(error) => self.fail(format!("a message with a key was refused: {error}")),
        }
    }

    /// The same request under the same key is the same message, whatever became of that; another one is refused.
    pub(super) async fn submit_with_key_again(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let at = self.dice.random_range(0..self.keys.len());
        let (id, submission) = self.keys[at].clone();
        match self.delays.submit_one(submission.clone()).await {
            Ok(accepted) if accepted.id == id && !accepted.is_new => {}
            answer => self.fail(format!("the key of {id} was forgotten: {answer:?}")),
        }
        let other = submission.payload("something else");
        match self.delays.submit_one(other).await {
            Err(Error::KeyReused { id: used_for, .. }) if used_for == id => {}
            answer => self.fail(format!("the key of {id} was used twice: {answer:?}")),
        }
    }

    /// A callback that gives no answer: from then on the message is neither moved nor taken back.
    pub(super) async fn doubt(&mut self) -> Result<()> {
        self.quiet().await;
        let mut tag = self.fresh_tag();
        while is_refused(tag) {
            tag = self.fresh_tag();
        }
        let id = format!("m{tag}");
        let mut submission = self.submission(&id, tag, When::At(self.clock.now()));
        submission.target = Target::callback("http://silent/");
        let submission = submission.retry(Schedule::new([Duration::from_mins(10)]));
        self.witness.stay_silent(tag);
        let answer = self.delays.submit_one(submission).await;
        ensure!(self.note(&id, tag, answer), "it was not taken");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.delays.get(&Self::id(&id)).await?;
            if message.record.is_in_doubt() {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{id} was never tried: {message:?}"
            );
            self.clock.pass(5);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // What is answered after it was written is synced with it.
        let later = When::At(self.clock.now() + Duration::from_secs(30));
        let (_, is_taken) = self.submit_one(later).await;
        ensure!(is_taken, "it was not taken");
        if let Some(kept) = self.model.get_mut(&id) {
            kept.in_doubt = true;
        }
        Ok(())
    }

    /// A message is ended, whatever its attempts do.
    pub(super) async fn stop(&mut self) {
        let Some(id) = self.pick(Life::Waiting) else {
            return;
        };
        let now = self.clock.now();
        let before = self.delays.get(&Self::id(&id)).await;
        // Else an attempt may run, and be seen a moment later.
        let waits = before.is_ok_and(
            |message| matches!(message.record.state(), State::Scheduled { at } if at > now),
        );
        match self
            .delays
            .withdraw_with(&Self::id(&id), Withdraw::Stop)
            .await
        {
            Ok(message) => {
                self.stopped += 1;
                let is_in_doubt = message.record.is_in_doubt();
                let seen = self.witness.len();
                let kept = self.model.get_mut(&id);
                let was_in_doubt = kept.as_ref().is_some_and(|kept| kept.in_doubt);
                if let Some(kept) = kept {
                    kept.life = Life::Withdrawn;
                    kept.firm_from = if waits || !is_in_doubt {
                        seen
                    } else {
                        usize::MAX
                    };
                }
                if was_in_doubt && !is_in_doubt {
                    self.fail(format!("{id} was stopped, and may have been delivered"));
                }
            }
            Err(Error::Refused(refusal)) if refusal.state.is_final() => {}
            Err(error) => self.fail(format!("stopping {id}: {error}")),
        }
    }
}

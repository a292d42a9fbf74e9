//! The one script that writes, and what is handed to it.

use std::sync::LazyLock;

use laneway_cluster::apply::{Head, Identity, Kept};
use laneway_cluster::record::{Chain, State};
use laneway_delay::MessageId;
use redis::Script;
use redis::aio::ConnectionLike;

use crate::error::Error;
use crate::keys::{self, Keys, hexadecimal};

static APPLY: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("apply.lua")));

/// How what is in Redis is laid out. A copy of another format is not used.
pub(crate) const FORMAT: u32 = 1;

/// From whatever is there: all of it is thrown away first.
pub(crate) const ANEW: &str = "anew";

/// The same, whatever epoch has written it.
pub(crate) const SEIZE: &str = "seize";

/// A call of the script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    keys: Keys,
    pub(crate) to: String,
    identity: String,
    epoch: u64,
    from: String,
    /// The head that the copy is a whole of.
    head: Vec<(&'static str, Vec<u8>)>,
    count: u64,
    ops: Vec<Vec<u8>>,
    bytes: usize,
}

/// What the script says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It is done.
    Done,
    /// A later owner has written.
    LaterOwner,
    /// The copy is somewhere else.
    Elsewhere,
    /// Something that was written is gone.
    Lost,
}

impl Call {
    pub(crate) fn new(identity: &Identity, epoch: u64, from: &str, to: &str) -> Self {
        Self {
            keys: Keys::of(identity),
            to: to.to_owned(),
            identity: keys::identity(identity),
            epoch,
            from: from.to_owned(),
            head: Vec::new(),
            count: 0,
            ops: Vec::new(),
            bytes: 0,
        }
    }

    /// With this call the copy is that of a head.
    pub(crate) fn whole(&mut self, head: &Head) {
        let encoded = head.encode();
        let check = Chain::START.then(&encoded);
        let text = |text: String| text.into_bytes();
        let digest: Vec<u8> = head
            .digest
            .0
            .iter()
            .flat_map(|lane| lane.to_be_bytes())
            .collect();
        self.count = head.rows;
        self.head = vec![
            ("format", text(FORMAT.to_string())),
            ("applied", text(head.next.to_string())),
            ("hash", text(hexadecimal(&head.chain.0))),
            ("digest", text(hexadecimal(&digest))),
            ("head", encoded.to_vec()),
            ("check", text(hexadecimal(&check.0))),
        ];
    }

    /// A row, as it is now.
    pub(crate) fn change(&mut self, id: &MessageId, row: Option<&Kept>) {
        let name = id.as_str().as_bytes();
        let Some(row) = row else {
            self.op(&[b"remove", name]);
            self.op(&[b"take", name]);
            return;
        };
        let image = &row.image;
        let next = match image.state {
            State::Scheduled => image.next.as_millis().to_string(),
            _ => String::new(),
        };
        self.op(&[b"put", name, &row.encode(), next.as_bytes()]);
        match worker_of(row) {
            Some(worker) => {
                let due = image.due.as_millis().to_string();
                self.op(&[b"hand", name, worker.as_bytes(), due.as_bytes()]);
            }
            None => self.op(&[b"take", name]),
        }
    }

    fn op(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes += part.len() + 16;
            self.ops.push(part.to_vec());
        }
    }

    /// It begins with nothing.
    pub(crate) fn is_anew(&self) -> bool {
        self.from == ANEW || self.from == SEIZE
    }

    /// About what it takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) async fn invoke(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> redis::RedisResult<Vec<String>> {
        let keys = &self.keys;
        let mut call = APPLY.prepare_invoke();
        for key in [
            keys.meta(),
            keys.row(),
            keys.due(),
            keys.with(),
            keys.workers(),
        ] {
            call.key(key);
        }
        call.arg(keys.prefix())
            .arg(self.epoch)
            .arg(&self.identity)
            .arg(&self.from)
            .arg(&self.to)
            .arg(u8::from(!self.head.is_empty()))
            .arg(self.count)
            .arg(self.head.len());
        for (field, value) in &self.head {
            call.arg(*field).arg(&value[..]);
        }
        for part in &self.ops {
            call.arg(&part[..]);
        }
        call.invoke_async(connection).await
    }

    /// What an answer means. A call that is where this one leads was made before.
    pub(crate) fn said(&self, answer: &[String]) -> Result<Said, Error> {
        match answer {
            [word, ..] if word == "ok" => Ok(Said::Done),
            [word, at] if word == "gap" && *at == self.to => Ok(Said::Done),
            [word, ..] if word == "gap" => Ok(Said::Elsewhere),
            [word, ..] if word == "epoch" => Ok(Said::LaterOwner),
            [word, ..] if word == "lost" => Ok(Said::Lost),
            _ => Err(Error::Unreadable("an answer of the script")),
        }
    }
}

/// The worker that was handed a message: it has the newest attempt, whose outcome is not known.
fn worker_of(row: &Kept) -> Option<String> {
    let image = &row.image;
    if image.state != State::Scheduled {
        return None;
    }
    let doubt = image.doubts.get(&image.attempts)?;
    Some(hexadecimal(&doubt.worker.0))
}

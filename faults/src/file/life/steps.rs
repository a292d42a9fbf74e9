//! What can happen, and how often.

use std::ffi::OsStr;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::model::Model;
use super::words::{Item, Keep, Nature, Wish};
use super::{Living, World};
use crate::frame::Run;
use crate::lives::draw;

const TOPICS: [&str; 6] = ["parks", "letters", "plain", "aged", "sized", "counted"];
const KEYS: u64 = 12;

/// How a life ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Close,
    Kill,
    Cut,
}

pub(super) const ENDINGS: &[(u32, Ending)] =
    &[(3, Ending::Close), (3, Ending::Kill), (5, Ending::Cut)];

/// Copies a directory, without what was never written, and lists its files.
pub(super) const COPY: &str =
    r#"rm -rf "$1" && cp -a --sparse=always "$0" "$1" && find "$1/log" -type f -size +0"#;

/// Flips a bit of a copy; the same one again if it is called again. Of a journal early on, or anywhere.
pub(super) const FLIP: &str = r"
import os, random, sys
top, seed, early = sys.argv[1], int(sys.argv[2]), sys.argv[3] == '1'
dice = random.Random(seed)
found = [os.path.join(at, f) for at, _, fs in os.walk(os.path.join(top, 'log')) for f in fs]
found = sorted(f for f in found if os.path.getsize(f) > 0)
journals = [f for f in found if f.endswith('.jnl')]
chosen = os.path.join(top, 'flipped')
if os.path.exists(chosen):
    path, at, bit = open(chosen).read().split('\n')
    at, bit = int(at), int(bit)
else:
    path = dice.choice(journals if early and journals else found)
    with open(path, 'rb') as f:
        size = len(f.read().rstrip(b'\0'))
    at = dice.randrange(min(size, 150) if early else size) if size else 0
    bit = dice.randrange(8)
    open(chosen, 'w').write('%s\n%d\n%d' % (path, at, bit))
with open(path, 'r+b') as f:
    f.seek(at)
    byte = f.read(1)
    if byte:
        f.seek(at)
        f.write(bytes([byte[0] ^ (1 << bit)]))
print(os.path.relpath(path, top), at, bit)
";

/// Takes all room of a file system.
const TAKE_ALL: &str = r#"
free=$(df --output=avail -B1 "$(dirname "$0")" | tail -1)
fallocate -l "$free" "$0" 2>/dev/null || true"#;

#[derive(Clone, Copy, Debug)]
enum Step {
    Declare,
    Publish,
    Large,
    Handle,
    Letters,
    /// Partitions are used once, one after the other, and retention takes everything.
    Quiet,
    Positions,
    Delete,
    HalfDelete,
    Idle,
    Reopen,
    Starve,
    Fill,
    SetClock,
    Check,
}

const STEPS: &[(u32, Step)] = &[
    (10, Step::Declare),
    (40, Step::Publish),
    (4, Step::Large),
    (25, Step::Handle),
    (8, Step::Letters),
    (5, Step::Quiet),
    (1, Step::Positions),
    (4, Step::Delete),
    (6, Step::HalfDelete),
    (6, Step::Idle),
    (12, Step::Reopen),
    (2, Step::Starve),
    (2, Step::Fill),
    (12, Step::SetClock),
    (8, Step::Check),
];

/// What takes time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A process starts.
    Begin,
    /// It is killed, or its power is cut.
    End,
    Flip,
    Publish,
    Handle,
    Check,
    Reopen,
    Idle,
    Other,
}

impl Kind {
    pub(super) fn of(wish: &Wish) -> Self {
        match wish {
            Wish::Publish { .. } => Self::Publish,
            Wish::Handle { .. } => Self::Handle,
            Wish::Check => Self::Check,
            Wish::Reopen => Self::Reopen,
            Wish::Idle(_) => Self::Idle,
            _ => Self::Other,
        }
    }
}

/// Says what a wish is, without all that is in it.
pub(super) fn brief(wish: &Wish) -> String {
    match wish {
        Wish::Publish { topic, items, .. } => format!("publishing {} to {topic}", items.len()),
        wish => format!("{wish:?}"),
    }
}

fn nature(name: &str, dice: &mut impl Rng) -> Nature {
    let keep = match name {
        "aged" => Keep::Age(300),
        "sized" => Keep::Bytes(6000),
        "counted" => Keep::Count(10),
        _ => Keep::All,
    };
    Nature {
        partitions: if name == "aged" {
            6
        } else {
            dice.random_range(1..5)
        },
        is_plain: name == "plain",
        parks: name == "parks",
        keep,
    }
}

/// Wishes that fit what is there.
pub(super) struct Steps<'a>(pub(super) &'a mut Model);

impl Steps<'_> {
    fn some_topic(&mut self, dice: &mut StdRng) -> Option<String> {
        let names: Vec<_> = self.0.topics.keys().cloned().collect();
        (!names.is_empty()).then(|| names[dice.random_range(0..names.len())].clone())
    }

    /// A new topic; or an old one, perhaps with more partitions.
    fn declare(&mut self, dice: &mut StdRng) -> Wish {
        let name = TOPICS[dice.random_range(0..TOPICS.len())];
        let mut nature = nature(name, dice);
        if let Some(topic) = self.0.topics.get(name) {
            let more = u32::from(dice.random_bool(0.3));
            nature.partitions = (topic.nature.partitions + more).min(8);
        }
        Wish::Declare(name.to_owned(), nature)
    }

    /// The plain topic, as it is or a new one.
    pub(super) fn declare_plain(&mut self, dice: &mut StdRng) -> Wish {
        let known = self.0.topics.get("plain").map(|topic| topic.nature);
        let nature = known.unwrap_or_else(|| nature("plain", dice));
        Wish::Declare("plain".to_owned(), nature)
    }

    fn publish(&mut self, dice: &mut StdRng, size: usize) -> Option<Wish> {
        let topic = self.some_topic(dice)?;
        let is_plain = self.0.topics[&topic].nature.is_plain;
        let count = if size > 10_000 {
            2
        } else {
            dice.random_range(1..25)
        };
        let items = (0..count).map(|_| Item {
            key: format!("key-{}", dice.random_range(0..KEYS)),
            seq: self.0.number(),
            size: dice.random_range(0..=size),
        });
        let items = items.collect();
        Some(Wish::Publish {
            topic,
            is_plain,
            items,
            is_batch: dice.random_bool(0.5),
        })
    }

    fn handle(&mut self, dice: &mut StdRng) -> Option<Wish> {
        let topic = self.some_topic(dice)?;
        let nature = self.0.topics[&topic].nature;
        Some(Wish::Handle {
            topic,
            nature,
            one_fails_in: *draw(dice, &[(2, 0), (1, 5)]),
            millis: dice.random_range(20..300),
        })
    }

    /// Plain messages, and then to handle them, if there is a topic for them.
    pub(super) fn plain(&mut self, dice: &mut StdRng) -> Option<[Wish; 2]> {
        let topic = "plain".to_owned();
        let nature = self.0.topics.get(&topic)?.nature;
        let items = (0..40).map(|_| Item {
            key: String::new(),
            seq: self.0.number(),
            size: dice.random_range(0..50),
        });
        let publish = Wish::Publish {
            topic: topic.clone(),
            is_plain: true,
            items: items.collect(),
            is_batch: true,
        };
        let handle = Wish::Handle {
            topic,
            nature,
            one_fails_in: 0,
            millis: 500,
        };
        Some([publish, handle])
    }

    /// What is asked for at once, before something breaks. Handling comes with something to handle, on a topic each.
    pub(super) fn burst(&mut self, dice: &mut StdRng) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for _ in 0..dice.random_range(0..4) {
            wishes.extend(self.publish(dice, 300));
        }
        if dice.random_bool(0.5) {
            wishes.extend(self.handle(dice));
        }
        if dice.random_bool(0.1) {
            // What is still being published to a topic that is deleted makes one of that name anew, with places of its own.
            let is_published = |topic: &String| {
                let to_it =
                    |wish: &Wish| matches!(wish, Wish::Publish { topic: to, .. } if to == topic);
                wishes.iter().any(to_it)
            };
            let topic = self.some_topic(dice).filter(|topic| !is_published(topic));
            wishes.extend(topic.map(Wish::Delete));
        }
        wishes
    }

    /// Lets all topics come to rest.
    pub(super) fn drain(&mut self) -> Vec<Wish> {
        let topics = self.0.topics.iter();
        let wishes = topics.flat_map(|(name, topic)| {
            let letters = Wish::Letters {
                topic: name.clone(),
                drops: false,
            };
            let handle = Wish::Handle {
                topic: name.clone(),
                nature: topic.nature,
                one_fails_in: 0,
                millis: 15_000,
            };
            let letters = (!topic.nature.is_plain).then_some(letters);
            letters.into_iter().chain([handle])
        });
        wishes.collect()
    }
}

impl World<'_> {
    /// Something happens.
    pub(super) fn step(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        self.counts.steps += 1;
        let step = *draw(run.dice(), STEPS);
        let dice = run.dice();
        let mut steps = Steps(&mut self.model);
        let wish = match step {
            Step::Declare => Some(steps.declare(dice)),
            Step::Publish => steps.publish(dice, 300),
            Step::Large => steps.publish(dice, 900_000),
            Step::Handle => steps.handle(dice),
            Step::Letters => steps
                .some_topic(dice)
                .filter(|topic| !steps.0.topics[topic].nature.is_plain)
                .map(|topic| Wish::Letters {
                    topic,
                    drops: dice.random_bool(0.3),
                }),
            Step::Quiet => return self.quiet(run, living),
            Step::Positions => return self.positions(run, living),
            Step::Delete => steps.some_topic(dice).map(Wish::Delete),
            Step::HalfDelete => return self.half_delete(run, living),
            Step::Idle => Some(Wish::Idle(dice.random_range(50..600))),
            Step::Reopen => Some(Wish::Reopen),
            Step::Starve => return self.starve(run, living),
            Step::Fill => return self.fill(run, living),
            Step::SetClock => return self.set_clock(run),
            Step::Check => Some(Wish::Check),
        };
        let Some(wish) = wish else {
            return Ok(());
        };
        if matches!(wish, Wish::Reopen) {
            self.counts.reopens += 1;
        }
        self.must(living, &wish)
    }

    /// Partitions are used once, one after the other; then retention takes everything, and it is opened again.
    fn quiet(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        let name = "aged";
        let nature = nature(name, run.dice());
        if !self.model.topics.contains_key(name) {
            self.must(living, &Wish::Declare(name.to_owned(), nature))?;
        }
        let items = (0..KEYS)
            .flat_map(|key| (0..8).map(move |_| key))
            .map(|key| Item {
                key: format!("key-{key}"),
                seq: self.model.number(),
                size: 300,
            });
        let items = items.collect();
        let publish = Wish::Publish {
            topic: name.to_owned(),
            is_plain: false,
            items,
            is_batch: false,
        };
        self.counts.reopens += 1;
        for wish in [publish, Wish::Idle(700), Wish::Reopen, Wish::Check] {
            self.must(living, &wish)?;
        }
        Ok(())
    }

    /// Nothing but positions for long, and then an event.
    pub(super) fn positions(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        let Some(topic) = Steps(&mut self.model).some_topic(run.dice()) else {
            return Ok(());
        };
        let bytes = 150 << 20;
        run.note(format_args!("life {}: nothing but positions", self.lives));
        self.must(living, &Wish::Positions { topic, bytes })?;
        for _ in 0..3 {
            if let Some(wish) = Steps(&mut self.model).publish(run.dice(), 300) {
                self.must(living, &wish)?;
            }
        }
        self.is_at_risk = true;
        Ok(())
    }

    /// A deletion that is given up: it goes on, and what is declared then can be published to.
    fn half_delete(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        let Some(name) = Steps(&mut self.model).some_topic(run.dice()) else {
            return Ok(());
        };
        let nature = self.model.topics[&name].nature;
        self.must(living, &Wish::HalfDelete(name.clone()))?;
        // What was begun is finished: this is another one.
        self.model.gone(&name);
        self.must(living, &Wish::Declare(name.clone(), nature))?;
        let item = Item {
            key: "key-0".to_owned(),
            seq: self.model.number(),
            size: 10,
        };
        let wish = Wish::Publish {
            topic: name,
            is_plain: nature.is_plain,
            items: vec![item],
            is_batch: false,
        };
        self.must(living, &wish)
    }

    /// No descriptor is free for a while. What is published meanwhile may fail; afterwards it goes on.
    fn starve(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        self.counts.starved += 1;
        let millis = run.dice().random_range(20..300);
        let starving = self.tell(living, &Wish::Starve(millis))?;
        let mut asked = Vec::new();
        for _ in 0..4 {
            if let Some(wish) = Steps(&mut self.model).publish(run.dice(), 2000) {
                asked.push(self.tell(living, &wish)?);
            }
        }
        asked.push(starving);
        self.await_all(living, asked)?;
        self.goes_on(run, living)
    }

    /// The disk is full for a while. What is published meanwhile may fail; afterwards it goes on.
    fn fill(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        // Without a topic nothing can be published to see that it goes on, and the next step would be refused.
        if self.disk.is_none() || self.model.topics.is_empty() {
            return Ok(());
        }
        self.counts.filled += 1;
        let ballast = self.home.join("ballast");
        self.sh(&[OsStr::new(TAKE_ALL), ballast.as_os_str()])?;
        let mut asked = Vec::new();
        for _ in 0..4 {
            if let Some(wish) = Steps(&mut self.model).publish(run.dice(), 2000) {
                asked.push(self.tell(living, &wish)?);
            }
        }
        self.await_all(living, asked)?;
        self.sh(&[OsStr::new("rm -f \"$0\""), ballast.as_os_str()])?;
        self.goes_on(run, living)
    }

    /// The wall clock is ahead or behind by up to two hours from now on, or right again.
    fn set_clock(&mut self, run: &mut Run) -> Result<()> {
        let Some(clock) = &self.clock else {
            return Ok(());
        };
        let seconds = *draw(run.dice(), &[(1, 0), (2, 7200), (1, 30)]);
        let offset = run.dice().random_range(-seconds..=seconds);
        self.counts.clocks += 1;
        clock.set(offset)
    }

    /// Publishing works again, within a few seconds.
    fn goes_on(&mut self, run: &mut Run, living: &mut Living) -> Result<()> {
        let mut last = String::new();
        for _ in 0..100 {
            let Some(wish) = Steps(&mut self.model).publish(run.dice(), 100) else {
                return Ok(());
            };
            let number = self.tell(living, &wish)?;
            match self.answer(living, number)? {
                super::Answer::Done => return self.must(living, &Wish::Check),
                super::Answer::Failed(reason) => {
                    last = reason;
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
                super::Answer::Ended => break,
            }
        }
        self.model.broken(format!(
            "it does not go on when what was short is there again: {last}"
        ));
        Ok(())
    }
}

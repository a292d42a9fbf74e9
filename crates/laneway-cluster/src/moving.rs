//! Messages that come into a shard from elsewhere, with all that is known of them: id, history, attempts, state.
//!
//! They are not submitted: an [`Owner`](crate::record::Owner) of its own writes them, whose reign is a
//! [fence](crate::record::Reign::fence). While the last owner is a fence no center announces itself, so that nothing of the shard
//! is begun, changed or forgotten before everything is there. Then the fence is taken away by an announcement with another reign.
//!
//! [`next_step`] says what is left to do for one message. It looks at nothing but the row that is there, so a move that broke off goes
//! on where it was: a message is in the log, or it is not.
//!
//! | what is there | what is written |
//! |---|---|
//! | nothing, and the message was never tried nor changed | `accepted` |
//! | nothing | `answered`: of an id without a message, so that there is a row which nothing can be done with |
//! | an id without a message | `carried`, with everything |
//! | the same message | nothing |
//! | another message | nothing: the ids collide |

use laneway_delay::{MessageId, Timestamp};

use crate::apply::Kept;
use crate::record::{
    Answer, Change, Command, Image, Key, MessageRow, Refusal, RequestDigest, Row, State, Verb,
};

/// A message on its way into a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its id, which it keeps.
    pub id: MessageId,
    /// All that is known of it.
    pub image: Image,
}

/// What is left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is there.
    There,
    /// Nothing can be done: another message has its id.
    Taken,
    /// This row is next.
    Write(Row),
}

/// The key of the answer that holds the place of a message.
fn place_holder() -> Key {
    Key::of("laneway move")
}

/// What is left to do for a message, by the row that is there.
#[must_use]
pub fn next_step(there: Option<&Kept>, arrival: &Arrival) -> Step {
    let change = match there {
        None if is_untouched(&arrival.image) => accepted(&arrival.image),
        None => Change::Answered {
            command: Command {
                verb: Verb::Extend,
                key: place_holder(),
                digest: RequestDigest([0; 32]),
            },
            answer: Answer::Refused(Refusal::Unknown),
            at: arrival.image.accepted,
        },
        Some(kept) if kept.image.state == State::Absent => {
            let mut image = arrival.image.clone();
            image.answers.clone_from(&kept.image.answers);
            image.answers.remove(&place_holder());
            Change::Carried {
                image: Box::new(image),
            }
        }
        Some(kept) if is_same(&kept.image, &arrival.image) => return Step::There,
        Some(_) => return Step::Taken,
    };
    let version = there.map_or(0, |kept| kept.version) + 1;
    Step::Write(Row::Message(MessageRow {
        id: arrival.id.clone(),
        version,
        change,
    }))
}

/// Neither of these ever changes.
fn is_same(there: &Image, arrival: &Image) -> bool {
    there.digest == arrival.digest && there.accepted == arrival.accepted
}

/// Whether an `accepted` says all there is to say.
fn is_untouched(image: &Image) -> bool {
    let Image {
        due,
        accepted,
        digest,
        topic,
        body,
        ..
    } = image;
    *image == Image::accepted(*due, *accepted, *digest, topic.clone(), body.clone())
}

fn accepted(image: &Image) -> Change {
    Change::Accepted {
        due: image.due,
        at: image.accepted,
        digest: image.digest,
        topic: image.topic.clone(),
        body: image.body.clone(),
    }
}

/// An id that stands for another message, whose idempotency key it is made of: so that a request with that key is known again.
#[must_use]
pub fn alias(id: MessageId, of: MessageId, digest: RequestDigest, used: Timestamp) -> Arrival {
    let image = Image {
        state: State::Replayed { at: used, to: of },
        digest,
        due: used,
        next: used,
        accepted: used,
        ..Image::absent()
    };
    Arrival { id, image }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::apply::{Applied, Identity, Memory, Shard, Table, Void};
    use crate::owner::{Settings, ShardOwner};
    use crate::record::{Event, Fact, HistoryEvent, Owner, Record, Reign};

    const MOVER: [u8; 6] = *b"source";

    struct World {
        shard: Shard<Memory>,
        offset: u64,
        last: Option<Bytes>,
        reign: Reign,
        sequence: u64,
    }

    impl World {
        fn new() -> Self {
            let identity = Identity {
                cluster: "c".into(),
                topic: "log".into(),
                shard: 0,
                shards: 1,
            };
            Self {
                shard: Shard::new(identity, Memory::default()),
                offset: 0,
                last: None,
                reign: Reign([0; 16]),
                sequence: 0,
            }
        }

        fn append(&mut self, record: &Record) -> Applied {
            let bytes = record.encode();
            let applied = self.shard.apply(self.offset, &bytes).unwrap();
            self.offset += 1;
            self.last = Some(bytes);
            applied
        }

        fn announce(&mut self, reign: Reign) {
            let (epoch, basis) = (self.shard.head().epoch + 1, self.shard.head().basis());
            let owner = Owner {
                epoch,
                reign,
                basis,
            };
            assert_eq!(self.append(&Record::Owner(owner)), Applied::Owner);
            (self.reign, self.sequence) = (reign, 0);
        }

        fn write(&mut self, row: Row) -> Applied {
            self.sequence += 1;
            let fact = Fact {
                epoch: self.shard.head().epoch,
                reign: self.reign,
                sequence: self.sequence,
                basis: self.shard.head().basis(),
                rows: vec![row],
            };
            self.append(&Record::Fact(fact))
        }

        fn step(&self, arrival: &Arrival) -> Step {
            next_step(self.shard.table().get(&arrival.id).as_deref(), arrival)
        }

        /// Writes until nothing is left to do; answers how many rows that took.
        fn arrive(&mut self, arrival: &Arrival) -> usize {
            let mut rows = 0;
            while let Step::Write(row) = self.step(arrival) {
                let counted = Applied::Fact {
                    counted: vec![true],
                };
                assert_eq!(self.write(row), counted);
                rows += 1;
            }
            assert_eq!(self.step(arrival), Step::There);
            rows
        }
    }

    fn arrival(id: &str) -> Arrival {
        let at = Timestamp::from_millis(1_000);
        let digest = RequestDigest::of_fingerprint(7);
        Arrival {
            id: MessageId::new(id).unwrap(),
            image: Image::accepted(at, at, digest, "t".to_owned(), Bytes::from("{}")),
        }
    }

    fn dead(id: &str) -> Arrival {
        let mut dead = arrival(id);
        dead.image.state = State::Dead {
            at: Timestamp::from_millis(9_000),
            cause: crate::record::Cause::Exhausted,
        };
        (dead.image.attempts, dead.image.failures) = (3, 3);
        dead.image.doubt_stays = true;
        dead.image.history.push(Event {
            at: Timestamp::from_millis(2_000),
            what: HistoryEvent::Failed(1, "500".to_owned()),
        });
        dead
    }

    #[test]
    fn a_message_arrives_once_with_all_that_is_known_of_it() {
        let mut world = World::new();
        world.announce(Reign::fence(MOVER, [1; 4]));
        let (new, dead) = (arrival("new"), dead("dead"));
        assert_eq!(world.arrive(&new), 1);
        assert_eq!(world.arrive(&dead), 2);
        // Run again, from the log alone.
        world.announce(Reign::fence(MOVER, [2; 4]));
        assert_eq!(world.arrive(&new), 0);
        assert_eq!(world.arrive(&dead), 0);
        for arrival in [&new, &dead] {
            let there = world.shard.table().get(&arrival.id).unwrap();
            assert_eq!(there.image, arrival.image);
        }
    }

    #[test]
    fn a_move_that_broke_off_between_two_rows_leaves_nothing_that_fires() {
        let mut world = World::new();
        world.announce(Reign::fence(MOVER, [1; 4]));
        let dead = dead("dead");
        let Step::Write(row) = world.step(&dead) else {
            panic!("{:?}", world.step(&dead));
        };
        world.write(row);
        let there = world.shard.table().get(&dead.id).unwrap();
        assert_eq!(there.image.state, State::Absent);
        world.announce(Reign::fence(MOVER, [2; 4]));
        assert_eq!(world.arrive(&dead), 1);
        let there = world.shard.table().get(&dead.id).unwrap();
        assert!(there.image.answers.is_empty());
    }

    #[test]
    fn the_id_of_another_message_is_not_taken_over() {
        let mut world = World::new();
        world.announce(Reign([7; 16]));
        world.arrive(&arrival("a"));
        let mut other = arrival("a");
        other.image.digest = RequestDigest([9; 32]);
        assert_eq!(world.step(&other), Step::Taken);
    }

    #[test]
    fn no_center_announces_itself_behind_a_fence_and_what_it_had_sent_is_void() {
        let mut world = World::new();
        world.announce(Reign([7; 16]));
        let basis = world.shard.head().basis();
        world.announce(Reign::fence(MOVER, [1; 4]));
        let late = Fact {
            epoch: 1,
            reign: Reign([7; 16]),
            sequence: 1,
            basis,
            rows: Vec::new(),
        };
        let applied = world.append(&Record::Fact(late));
        assert_eq!(applied, Applied::Void(Void::NotOwner));

        let mut center = ShardOwner::new(Settings::default());
        center.assign();
        let mut announce = |world: &World| {
            let verified = world.shard.verify(world.last.as_ref()).unwrap();
            center.announce(&world.shard, verified, Reign([8; 16]))
        };
        assert!(announce(&world).is_empty());
        world.announce(Reign([9; 16]));
        assert_eq!(announce(&world).len(), 1);
    }

    #[test]
    fn a_request_is_known_again_by_its_fingerprint() {
        let moved = RequestDigest::of_fingerprint(7);
        let asked = RequestDigest([3; 32]).with_fingerprint(7);
        assert!(moved.is_same_as(&asked) && asked.is_same_as(&moved));
        assert!(!moved.is_same_as(&RequestDigest([3; 32]).with_fingerprint(8)));
        let other = RequestDigest([4; 32]).with_fingerprint(7);
        assert!(!asked.is_same_as(&other), "both are known in full");
        assert_eq!(Reign::fence(MOVER, [1; 4]).mover(), Some(MOVER));
        assert_eq!(Reign([7; 16]).mover(), None);
    }
}

use laneway_delay::{MessageId, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::record::tests::{ids, images};
use crate::record::{
    Answer, Answered, Basis, Doubt, Event, HistoryEvent, Instance, Key, RequestDigest, RowDigest,
    State, Verb,
};

fn kept() -> impl Strategy<Value = Kept> {
    (any::<[u64; 3]>(), images()).prop_map(|([version, image_at, changed_at], image)| Kept {
        version,
        image_at,
        changed_at,
        image,
    })
}

fn identities() -> impl Strategy<Value = Identity> {
    ("\\PC{0,6}", "\\PC{0,6}", any::<u32>(), any::<u32>()).prop_map(
        |(cluster, topic, shard, shards)| Identity {
            cluster,
            topic,
            shard,
            shards,
        },
    )
}

fn marks() -> impl Strategy<Value = Basis> {
    (any::<u64>(), any::<[u8; 32]>(), any::<[u64; 4]>()).prop_map(|(read, chain, digest)| Basis {
        read,
        chain: Chain(chain),
        digest: RowDigest(digest),
    })
}

fn stops() -> impl Strategy<Value = Stop> {
    let why = prop_oneof![
        Just(Unreadable::Foreign),
        any::<u8>().prop_map(|found| Unreadable::Format { found }),
        any::<u8>().prop_map(Unreadable::Kind),
        (0..DETAILS.len()).prop_map(|index| Unreadable::Damaged(DETAILS[index])),
    ];
    prop_oneof![
        (any::<u64>(), why).prop_map(|(offset, why)| Stop::Unreadable { offset, why }),
        (identities(), identities()).prop_map(|(found, expected)| Stop::OtherLog {
            found: Box::new(found),
            expected: Box::new(expected),
        }),
        any::<u64>().prop_map(|offset| Stop::Incomplete { offset }),
        Just(Stop::OtherRecord),
        Just(Stop::OtherRows),
        Just(Stop::NoBeginning),
    ]
}

fn heads() -> impl Strategy<Value = Head> {
    let opens =
        (any::<[u64; 3]>(), any::<bool>()).prop_map(|([offset, epoch, sequence], is_closed)| {
            Opened {
                offset,
                epoch,
                sequence,
                is_closed,
            }
        });
    let stub =
        (any::<u64>(), any::<bool>()).prop_map(|(version, is_gone)| Stub { version, is_gone });
    (
        (identities(), any::<[u64; 6]>(), any::<[u8; 16]>(), marks()),
        (
            any::<[u8; 32]>(),
            any::<bool>(),
            proptest::option::of(opens),
        ),
        btree_map(ids(), stub, 0..6),
        vec(marks(), 0..6),
        proptest::option::of(stops()),
    )
        .prop_map(
            |(
                (identity, numbers, reign, mark),
                (last, is_complete, open),
                stubs,
                marks,
                stopped,
            )| {
                let [epoch, sequence, rows, without_image, forgotten, _] = numbers;
                Head {
                    identity,
                    next: mark.read,
                    epoch,
                    reign: Reign(reign),
                    sequence,
                    last: Chain(last),
                    chain: mark.chain,
                    digest: mark.digest,
                    rows,
                    without_image,
                    open,
                    is_complete,
                    forgotten,
                    stubs,
                    marks: marks.into(),
                    stopped,
                }
            },
        )
}

proptest! {
    #[test]
    fn a_row_is_read_as_it_was_written(kept in kept()) {
        prop_assert_eq!(Kept::decode(&kept.encode()), Ok(kept));
    }

    #[test]
    fn a_head_is_read_as_it_was_written(head in heads()) {
        prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        for magic in [HEAD, KEPT] {
            let bytes = Bytes::from([magic, &[FORMAT], &bytes].concat());
            let _ = (Head::decode(&bytes), Kept::decode(&bytes));
        }
    }

    #[test]
    fn changed_bytes_are_read_without_a_panic(
        head in heads(),
        kept in kept(),
        place in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut bytes = head.encode().to_vec();
        let at = place.index(bytes.len());
        bytes[at] = byte;
        let _ = Head::decode(&bytes.into());
        let mut bytes = kept.encode().to_vec();
        let at = place.index(bytes.len());
        bytes[at] = byte;
        let _ = Kept::decode(&bytes.into());
    }

    #[test]
    fn what_is_cut_short_is_not_read(head in heads(), kept in kept(), place in any::<prop::sample::Index>()) {
        let bytes = head.encode();
        prop_assert!(Head::decode(&bytes.slice(..place.index(bytes.len()))).is_err());
        let bytes = kept.encode();
        prop_assert!(Kept::decode(&bytes.slice(..place.index(bytes.len()))).is_err());
    }
}

#[test]
fn what_another_version_wrote_is_told_apart() {
    let later = Bytes::from_static(b"LWK\x02anything");
    assert_eq!(Kept::decode(&later), Err(StoredError::Format { found: 2 }));
    let other = Bytes::from_static(b"LWF\x01anything");
    assert!(matches!(Head::decode(&other), Err(StoredError::Damaged(_))));
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn a_kept() -> Kept {
    let at = Timestamp::from_millis(1_700_000_000_000);
    let digest = RequestDigest([2; 32]);
    let mut image = Image::accepted(at, at, digest, "reminders".to_owned(), Bytes::from("body"));
    image.state = State::Replayed {
        at,
        to: id("other"),
    };
    image.attempts = 2;
    image.failures = 1;
    let worker = Instance([8; 16]);
    image.doubts = BTreeMap::from([(2, Doubt { worker, epoch: 3 })]);
    image.doubt_stays = true;
    let answered = Answered {
        verb: Verb::Replay,
        digest,
        answer: Answer::Done { due: at },
        at,
    };
    image.answers = BTreeMap::from([(Key([4; 16]), answered)]);
    let what = HistoryEvent::Failed(1, "refused".to_owned());
    image.history = vec![Event { at, what }];
    Kept {
        version: 7,
        image_at: 300,
        changed_at: 4711,
        image,
    }
}

fn a_head() -> Head {
    let mark = Basis {
        read: 4712,
        chain: Chain([9; 32]),
        digest: RowDigest([1, 2, 3, 4]),
    };
    let identity = Identity {
        cluster: "c".to_owned(),
        topic: "laneway.delay.log/9f".to_owned(),
        shard: 3,
        shards: 16,
    };
    let stub = |version, is_gone| Stub { version, is_gone };
    Head {
        next: mark.read,
        epoch: 3,
        reign: Reign([5; 16]),
        sequence: 17,
        last: Chain([6; 32]),
        chain: mark.chain,
        digest: mark.digest,
        rows: 2,
        without_image: 1,
        open: Some(Opened {
            offset: 4000,
            epoch: 2,
            sequence: 9,
            is_closed: false,
        }),
        is_complete: false,
        forgotten: 12,
        stubs: BTreeMap::from([(id("a"), stub(4, false)), (id("b"), stub(5, true))]),
        marks: VecDeque::from([mark]),
        stopped: Some(Stop::OtherLog {
            found: Box::new(identity.clone()),
            expected: Box::new(identity.clone()),
        }),
        identity,
    }
}

#[test]
fn fixture_of_a_view_is_read() {
    let written = || {
        let (head, kept) = (a_head().encode(), a_kept().encode());
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        [&length[..], &head, &kept].concat()
    };
    let fixture = fixtures::bytes("cluster-view-1.hex", written);
    // What is written today is still that.
    assert_eq!(written(), fixture);
    let (length, rest) = fixture.split_first_chunk::<4>().unwrap();
    let (head, kept) = rest.split_at(u32::from_le_bytes(*length) as usize);
    assert_eq!(Head::decode(&Bytes::copy_from_slice(head)), Ok(a_head()));
    assert_eq!(Kept::decode(&Bytes::copy_from_slice(kept)), Ok(a_kept()));
}

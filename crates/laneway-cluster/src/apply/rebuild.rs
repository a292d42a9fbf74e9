use bytes::Bytes;

use super::{Applied, Identity, Opened, Shard, Stop, Table, Void};
use crate::record::{Close, Fact, Record, Row};
use crate::rules::Rules;

/// A shard from the records of a log that are left, without a view.
///
/// `is_whole` says that the log was never trimmed. Otherwise everything before the first `open` that has its `close` is
/// discarded: a purge may have been cut short. `empty` makes a table without rows.
///
/// # Errors
/// [`Stop::NoBeginning`] when nothing in the log is complete, and whatever [`Shard::apply`] says.
pub fn rebuild<T: Table>(
    identity: &Identity,
    is_whole: bool,
    records: &[(u64, Bytes)],
    empty: impl Fn() -> T,
) -> Result<Shard<T>, Stop> {
    rebuild_with(Rules::default(), identity, is_whole, records, empty)
}

pub(crate) fn rebuild_with<T: Table>(
    rules: Rules,
    identity: &Identity,
    is_whole: bool,
    records: &[(u64, Bytes)],
    empty: impl Fn() -> T,
) -> Result<Shard<T>, Stop> {
    let mut shard = Shard::with_rules(identity.clone(), empty(), rules);
    if is_whole {
        follow(&mut shard, records)?;
        return Ok(shard);
    }
    let mut stop = Stop::NoBeginning;
    for index in beginnings(records) {
        let mut shard = Shard::with_rules(identity.clone(), empty(), rules);
        let (offset, bytes) = &records[index];
        let result = shard
            .begin_at(*offset, bytes)
            .and_then(|_| follow(&mut shard, &records[index + 1..]));
        match result {
            // An `open` that did not count is followed by no `close` that does.
            Ok(()) if shard.head.is_complete => return Ok(shard),
            Ok(()) => {}
            Err(found) => stop = found,
        }
    }
    Err(stop)
}

fn follow<T: Table>(shard: &mut Shard<T>, records: &[(u64, Bytes)]) -> Result<(), Stop> {
    for (offset, bytes) in records {
        shard.apply(*offset, bytes)?;
    }
    Ok(())
}

/// Where records with an `open` are that some `close` names, in order.
fn beginnings(records: &[(u64, Bytes)]) -> Vec<usize> {
    let mut opens = Vec::new();
    let mut closed = Vec::new();
    for (index, (_, bytes)) in records.iter().enumerate() {
        let Ok(Record::Fact(fact)) = Record::decode(bytes) else {
            continue;
        };
        match fact.rows[..] {
            [Row::Open(_)] => opens.push((index, fact.epoch, fact.sequence)),
            [
                Row::Close(Close {
                    epoch, sequence, ..
                }),
            ] => closed.push((epoch, sequence)),
            _ => {}
        }
    }
    let is_closed =
        |(_, epoch, sequence): &(usize, u64, u64)| closed.contains(&(*epoch, *sequence));
    opens.retain(is_closed);
    opens.into_iter().map(|(index, ..)| index).collect()
}

impl<T: Table> Shard<T> {
    /// Begins at a record with an `open`, as if it counted. Rows from before it are missing until its `close`.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn begin_at(&mut self, offset: u64, bytes: &Bytes) -> Result<Applied, Stop> {
        let record = Record::decode(bytes).map_err(|why| Stop::Unreadable { offset, why })?;
        let Record::Fact(Fact {
            epoch,
            reign,
            sequence,
            rows,
            ..
        }) = &record
        else {
            return Ok(Applied::Void(Void::OutOfSequence));
        };
        let [Row::Open(open)] = &rows[..] else {
            return Ok(Applied::Void(Void::OutOfSequence));
        };
        if open.identity != self.head.identity {
            return Err(Stop::OtherLog {
                found: Box::new(open.identity.clone()),
                expected: Box::new(self.head.identity.clone()),
            });
        }
        let head = &mut self.head;
        (head.epoch, head.reign, head.sequence) = (*epoch, *reign, *sequence);
        head.forgotten = open.forgotten;
        head.is_complete = false;
        head.open = Some(Opened {
            offset,
            epoch: *epoch,
            sequence: *sequence,
            is_closed: false,
        });
        self.pass(offset, bytes);
        Ok(Applied::Fact {
            counted: vec![true],
        })
    }
}

use std::collections::BTreeSet;

use laneway_delay::MessageId;

use super::{Row, codec};

/// The most bytes that the rows of a fact have together. A row that is larger goes alone.
pub const MAX_BYTES: usize = 256 << 10;

/// What the head of a fact takes at most: magic, numbers, reign, basis and check.
const HEAD_BYTES: usize = 160;

/// Rows on their way into one fact.
///
/// A fact has at most one row of each message: two could both be based on what the first one made, and the second
/// would count by accident where the first one does not.
#[derive(Clone, Debug, Default)]
pub struct Pack {
    rows: Vec<Row>,
    ids: BTreeSet<MessageId>,
    bytes: usize,
}

impl Pack {
    /// Takes a row, if there is room for it and none of its message yet.
    ///
    /// # Errors
    /// The row, if it has to go into another fact.
    #[expect(
        clippy::result_large_err,
        reason = "the row goes back to where it came from"
    )]
    pub fn push(&mut self, row: Row) -> Result<(), Row> {
        let mut encoded = Vec::new();
        codec::put_row(&mut encoded, &row);
        let fits = self.bytes + encoded.len() + HEAD_BYTES <= MAX_BYTES;
        if !self.rows.is_empty() && (!fits || self.is_alone(&row) || self.has_id_of(&row)) {
            return Err(row);
        }
        self.bytes += encoded.len();
        if let Row::Message(row) = &row {
            self.ids.insert(row.id.clone());
        }
        self.rows.push(row);
        Ok(())
    }

    /// The rows.
    #[must_use]
    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    fn is_alone(&self, row: &Row) -> bool {
        let alone = |row: &Row| matches!(row, Row::Open(_) | Row::Close(_));
        alone(row) || self.rows.first().is_some_and(alone)
    }

    fn has_id_of(&self, row: &Row) -> bool {
        matches!(row, Row::Message(row) if self.ids.contains(&row.id))
    }
}

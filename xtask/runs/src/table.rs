//! Tables, for a terminal and for Markdown.

use std::ops::RangeInclusive;

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};

/// Where a table is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// In a terminal.
    Terminal,
    /// In a page of Markdown.
    Markdown,
}

/// A table with these columns, of which those in `numbers` are set to the right.
#[must_use]
pub fn table<const N: usize>(
    medium: Medium,
    header: [&str; N],
    numbers: RangeInclusive<usize>,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(match medium {
            Medium::Terminal => UTF8_FULL_CONDENSED,
            Medium::Markdown => ASCII_MARKDOWN,
        })
        .set_header(header)
        .add_rows(rows);
    for number in numbers {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

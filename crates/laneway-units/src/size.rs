use super::{Error, digits};

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a number of bytes. See the [crate](crate) for the grammar.
///
/// # Errors
/// [`Error::Size`] with the text.
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let unit = if unit.is_empty() { "B" } else { unit };
    let factor = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bytes = factor.and_then(|(_, factor)| digits(number)?.checked_mul(*factor));
    bytes.ok_or_else(|| Error::Size(text.to_owned()))
}

/// Writes a size in the largest binary unit that loses nothing.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let (unit, factor) = UNITS[..4]
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("10GiB", 10 << 30, "10GiB"),
            ("10gib", 10 << 30, "10GiB"),
            ("10GB", 10_000_000_000, "9765625KiB"),
            ("3kB", 3_000, "3000B"),
            ("512", 512, "512B"),
            ("1024B", 1024, "1KiB"),
            ("0", 0, "0B"),
        ] {
            let size = parse_size(text).expect(text);
            assert_eq!(size, bytes, "{text}");
            assert_eq!(format_size(size), written);
        }
        assert_eq!(parse_size(&u64::MAX.to_string()), Ok(u64::MAX));
    }

    #[test]
    fn all_other_texts_are_refused() {
        for text in [
            "",
            "GiB",
            "-1",
            "1.5GiB",
            "1GiB1",
            "1GiB1MiB",
            "1XiB",
            "99999999TiB",
            "1 2",
            "16 MiB",
        ] {
            assert_eq!(parse_size(text), Err(Error::Size(text.to_owned())));
        }
    }
}

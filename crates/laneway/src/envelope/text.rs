//! What a text field may hold: the rule of the `CloudEvents` type `String`, and a length.

use super::error::Problem;

/// The longest text field, in bytes. Generous: ids made of other ids fit.
pub(super) const MAX_TEXT: usize = 1024;

/// Checks a text field: not blank, not too long, and nothing in it that a header cannot carry.
pub(super) fn check(text: &str) -> Result<(), Problem> {
    if text.len() > MAX_TEXT {
        return Err(Problem::TooLong {
            length: text.len(),
            limit: MAX_TEXT,
        });
    }
    check_characters(text)?;
    if text.trim().is_empty() {
        return Err(Problem::Blank);
    }
    Ok(())
}

/// Refuses control characters and the code points that Unicode calls noncharacters.
pub(super) fn check_characters(text: &str) -> Result<(), Problem> {
    // Nearly every text is plain ASCII, and that needs no decoding.
    if text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return Ok(());
    }
    match text.char_indices().find(|&(_, c)| !allowed(c)) {
        None => Ok(()),
        Some((at, character)) => Err(Problem::NotTextCharacter { character, at }),
    }
}

fn allowed(c: char) -> bool {
    let code = u32::from(c);
    let noncharacter = matches!(code, 0xfdd0..=0xfdef) || code & 0xfffe == 0xfffe;
    !c.is_control() && !noncharacter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_script_is_allowed() {
        for text in [
            "a",
            "OrderPlaced",
            "订单已创建",
            "a b",
            "naïve 🦀",
            "<a & \"b\">",
        ] {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn control_characters_and_noncharacters_are_refused_with_their_place() {
        for (text, at) in [
            ("a\nb", 1),
            ("\0", 0),
            ("ab\u{7f}", 2),
            ("é\u{85}", 2),
            ("\u{fdd0}", 0),
            ("\u{ffff}", 0),
            ("\u{10fffe}", 0),
        ] {
            let Err(Problem::NotTextCharacter { at: found, .. }) = check(text) else {
                panic!("{text:?} was accepted");
            };
            assert_eq!(found, at, "{text:?}");
        }
    }

    #[test]
    fn blank_and_overlong_text_is_refused() {
        assert_eq!(check(""), Err(Problem::Blank));
        assert_eq!(check("   "), Err(Problem::Blank));
        assert_eq!(check(&"x".repeat(MAX_TEXT)), Ok(()));
        assert_eq!(
            check(&"x".repeat(MAX_TEXT + 1)),
            Err(Problem::TooLong {
                length: MAX_TEXT + 1,
                limit: MAX_TEXT
            })
        );
    }
}

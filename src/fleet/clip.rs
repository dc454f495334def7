//! Text of others on its way to the log.

use std::borrow::Cow;

/// Characters of one text that are logged.
const LOGGED_CHARS: usize = 256;

/// The text, or its beginning and how long it is.
pub(super) fn clipped(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LOGGED_CHARS) {
        Some((end, _)) => Cow::Owned(format!("{}… ({} bytes)", &text[..end], text.len())),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let most = "é".repeat(LOGGED_CHARS);
        assert_eq!(clipped(&most), most);
        assert_eq!(clipped(&format!("{most}é")), format!("{most}… (514 bytes)"));
    }
}

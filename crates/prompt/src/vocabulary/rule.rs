//! What a tokenizer's decoder does to tokens, as far as it does it to each token alone. Read from the decoder's
//! configuration in `tokenizer.json`:
//! - `ByteLevel` (GPT-2 and its line: Llama 3, Qwen, DeepSeek, gpt-oss): a token is written in an alphabet of 256
//!   characters, each of which stands for a byte;
//! - a `Sequence` of `Replace`, `ByteFallback`, `Fuse`, `Strip` (sentencepiece: Llama 2, Mistral, Gemma, Phi): a character
//!   stands for the space, `<0x0A>` for a byte, and the text loses a space in front;
//! - `Metaspace` (older sentencepiece, T5): a character stands for the space, and the first token loses its spaces.

use serde_json::Value;

/// How tokens become bytes, and bytes a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    letters: Letters,
    pub(super) invalid: Invalid,
    pub(super) front: Front,
}

/// What a text loses in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// Spaces, at most so many.
    Spaces(usize),
    /// The spaces of its first token.
    FirstToken,
}

#[derive(Clone, Debug, PartialEq)]
enum Letters {
    /// Of the byte-level alphabet.
    Bytes,
    /// As they are, after these replacements in turn; with tokens like `<0x0A>` or without.
    Text { replaced: Vec<(String, String)>, byte_fallback: bool },
}

/// What becomes of bytes that are no UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// Each longest piece of a character is one U+FFFD.
    Lossy,
    /// Each byte of a row of byte tokens is one U+FFFD.
    EachOfARun,
}

/// What one token is.
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) is_byte: bool,
}

impl Rule {
    /// # Errors
    /// What the decoder does that is not done to each token alone.
    pub(super) fn of(decoder: Option<&tokenizers::DecoderWrapper>) -> Result<Self, String> {
        let Some(decoder) = decoder else { return Err("the tokenizer has no decoder: spaces go between its tokens".into()) };
        let decoder = serde_json::to_value(decoder).map_err(|error| error.to_string())?;
        let steps = match &decoder["decoders"] {
            Value::Array(steps) => steps.as_slice(),
            _ => std::slice::from_ref(&decoder),
        };
        Self::of_steps(steps)
    }

    fn of_steps(steps: &[Value]) -> Result<Self, String> {
        let kind = |step: &Value| step["type"].as_str().unwrap_or_default().to_owned();
        if let [only] = steps
            && kind(only) == "ByteLevel"
        {
            return Ok(Self { letters: Letters::Bytes, invalid: Invalid::Lossy, front: Front::Spaces(0) });
        }
        if let [only] = steps
            && kind(only) == "Metaspace"
            && let Some(space) = only["replacement"].as_str()
        {
            let front = if only["prepend_scheme"] == "never" { Front::Spaces(0) } else { Front::FirstToken };
            let letters = Letters::Text { replaced: vec![(space.to_owned(), " ".to_owned())], byte_fallback: false };
            return Ok(Self { letters, invalid: Invalid::EachOfARun, front });
        }
        let mut replaced = Vec::new();
        let (mut byte_fallback, mut fused, mut strip_in_front) = (false, false, 0);
        for step in steps {
            let unknown = || Err(format!("a decoder of kind {step}"));
            match kind(step).as_str() {
                "Replace" if !byte_fallback && !fused => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                    (Some(pattern), Some(content)) if !pattern.is_empty() => replaced.push((pattern.to_owned(), content.to_owned())),
                    _ => return unknown(),
                },
                "ByteFallback" if !byte_fallback && !fused => byte_fallback = true,
                "Fuse" => fused = true,
                "Strip" if fused && strip_in_front == 0 && step["content"] == " " && step["stop"] == 0 => {
                    let start = step["start"].as_u64().and_then(|start| usize::try_from(start).ok());
                    strip_in_front = start.unwrap_or(0);
                }
                _ => return unknown(),
            }
        }
        let letters = Letters::Text { replaced, byte_fallback };
        Ok(Self { letters, invalid: Invalid::EachOfARun, front: Front::Spaces(strip_in_front) })
    }

    pub(super) fn piece(&self, token: &str) -> Piece {
        match &self.letters {
            Letters::Bytes => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                // A token with other characters was added as it is.
                Piece { bytes: bytes.unwrap_or_else(|| token.as_bytes().to_vec()), is_byte: false }
            }
            Letters::Text { replaced, byte_fallback } => {
                let text = replaced.iter().fold(token.to_owned(), |text, (pattern, content)| text.replace(pattern, content));
                match fallback_byte(&text).filter(|_| *byte_fallback) {
                    Some(byte) => Piece { bytes: vec![byte], is_byte: true },
                    None => Piece { bytes: text.into_bytes(), is_byte: false },
                }
            }
        }
    }
}

/// The byte that `<0x0A>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte a character of the byte-level alphabet stands for: printable Latin-1 for itself, the other 68 bytes in order
/// from U+0100.
fn byte_of(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_alphabet_has_each_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            ['Ġ', 'Ċ', 'ċ', 'ł', 'Ń', 'ĉ'].map(byte_of),
            [Some(b' '), Some(b'\n'), Some(b'\x0b'), Some(0xa0), Some(0xad), Some(b'\t')]
        );
    }

    #[test]
    fn decoders_that_treat_each_token_alone() {
        let llama = [
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        ];
        let rule = Rule::of_steps(&llama).expect("known");
        let piece = rule.piece("▁a▁");
        assert_eq!((piece.bytes.as_slice(), piece.is_byte), (&b" a "[..], false));
        let piece = rule.piece("<0xE2>");
        assert_eq!((piece.bytes.as_slice(), piece.is_byte), (&[0xe2][..], true));
        assert_eq!(rule.front, Front::Spaces(1));

        for unknown in [
            json!([{"type": "WordPiece", "prefix": "##", "cleanup": true}]),
            json!([{"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Fuse"}]),
            json!([{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]),
            json!([{"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}]),
            json!([{"type": "ByteFallback"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]),
        ] {
            let steps = unknown.as_array().expect("steps");
            assert!(Rule::of_steps(steps).is_err(), "{unknown}");
        }
    }
}

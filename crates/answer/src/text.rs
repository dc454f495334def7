//! Token ids to text, one at a time.
//!
//! However a sequence of ids is cut into pushes, the pieces together are what [`Vocabulary::decode`] makes of the prompt and
//! them, less the prompt. So a character is never split: bytes that may yet become one wait. And a row of byte tokens (`<0xE2>`)
//! waits for its end, since one wrong byte in it makes all of them U+FFFD.

mod bytes;
mod window;

use prompt::Vocabulary;

use self::{bytes::Bytes, window::Window};

/// The text of one choice so far, less what has been handed on.
#[derive(Debug)]
pub(crate) enum Detokenizer {
    /// The bytes of the tokens one after the other.
    Bytes(Bytes),
    /// Only the tokenizer knows what a token adds to the ones before.
    Window(Window),
}

impl Detokenizer {
    /// For what follows `prompt`, of which `shows` tells the tokens that make text: sentencepiece models drop a space in front of a
    /// text, not within one.
    pub(crate) fn after(prompt: &[u32], vocabulary: &Vocabulary, shows: impl Fn(u32) -> bool) -> Self {
        let shown = |id: &u32| !vocabulary.token_bytes(*id).is_empty() && shows(*id);
        if vocabulary.is_bytewise() {
            Self::Bytes(Bytes::new(prompt.iter().rev().any(shown)))
        } else {
            Self::Window(Window::after(prompt.iter().copied().filter(shown), vocabulary))
        }
    }

    /// Appends what `id` makes known of the text. An id that is no token leaves no trace.
    pub(crate) fn push(&mut self, id: u32, vocabulary: &Vocabulary, text: &mut String) {
        match self {
            _ if vocabulary.token_bytes(id).is_empty() => {}
            Self::Bytes(bytes) => bytes.push(id, vocabulary, text),
            Self::Window(window) => window.push(id, vocabulary, text),
        }
    }

    /// Appends what is left at the end.
    pub(crate) fn finish(&mut self, vocabulary: &Vocabulary, text: &mut String) {
        match self {
            Self::Bytes(bytes) => bytes.finish(text),
            Self::Window(window) => window.finish(vocabulary, text),
        }
    }

    /// Whether all the text of the tokens so far is known.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_settled(),
            Self::Window(window) => window.is_settled(),
        }
    }
}

//! Where only the tokenizer knows what a token adds: the last tokens are decoded with it and without it.
//!
//! Exact for decoders that look back no further than [`CONTEXT`] tokens, which are all that `tokenizers` has.

use prompt::Vocabulary;

/// Tokens of the prompt that are decoded with the first of an answer.
const CONTEXT: usize = 6;
/// Tokens that wait for the end of a character, at most: the longest has four bytes.
const MAX_WAITING: usize = 8;

/// The last tokens of a text.
#[derive(Debug, Default)]
pub(crate) struct Window {
    ids: Vec<u32>,
    /// How many of them have been handed on.
    told: usize,
    /// Their text.
    told_text: String,
}

impl Window {
    pub(super) fn after(prompt: impl DoubleEndedIterator<Item = u32>, vocabulary: &Vocabulary) -> Self {
        let mut ids: Vec<u32> = prompt.rev().take(CONTEXT).collect();
        ids.reverse();
        Self { told: ids.len(), told_text: vocabulary.decode(&ids, false), ids }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.told == self.ids.len()
    }

    pub(super) fn push(&mut self, id: u32, vocabulary: &Vocabulary, text: &mut String) {
        self.ids.push(id);
        let all = vocabulary.decode(&self.ids, false);
        if all.ends_with(char::REPLACEMENT_CHARACTER) && self.ids.len() - self.told <= MAX_WAITING {
            return;
        }
        self.tell(&all, vocabulary, text);
    }

    pub(super) fn finish(&mut self, vocabulary: &Vocabulary, text: &mut String) {
        if !self.is_settled() {
            let all = vocabulary.decode(&self.ids, false);
            self.tell(&all, vocabulary, text);
        }
    }

    /// Hands on what `all`, the text of all tokens here, has beyond what was told, and keeps the last few tokens.
    fn tell(&mut self, all: &str, vocabulary: &Vocabulary, text: &mut String) {
        // A decoder may write the end of the text before anew once something follows; what was told stands.
        text.push_str(all.get(self.told_text.len()..).unwrap_or_default());
        let old = self.ids.len().saturating_sub(CONTEXT);
        self.ids.drain(..old);
        self.told = self.ids.len();
        self.told_text = vocabulary.decode(&self.ids, false);
    }
}

//! Token ids to text and to bytes, exactly as `tokenizers` decodes (and so vLLM, SGLang and Dynamo; transformers' clean-up
//! of spaces before punctuation is nobody's on the way to a client).
//!
//! Of almost every model of today the text of some tokens is the bytes of each, one after the other. Those bytes are laid
//! out once, when the folder is loaded, so that one token of an answer costs one look-up. What a tokenizer's decoder does
//! to them is read from its configuration and checked against the tokenizer itself over the whole vocabulary; where that
//! fails ([`Vocabulary::is_bytewise`] is false) the tokenizer decodes.
//!
//! Memory: four bytes and the token's own for each id, 2 MB for a vocabulary of 150,000.

mod rule;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rule::{Front, Invalid, Rule};

/// Ids a table is made for; above that (no model is near it) the tokenizer decodes.
const MAX_IDS: usize = 1 << 22;
/// Ids decoded in one go while a table is checked: long enough that each id has others on both sides.
const CHECKED_AT_ONCE: usize = 61;

/// The texts of a model's tokens. Shared by threads; nothing in it locks.
pub struct Vocabulary {
    /// The bytes of all tokens, by id.
    bytes: Vec<u8>,
    /// Where each id's bytes end; they begin where the one before ends.
    ends: Vec<u32>,
    special: Bits,
    /// Tokens like `<0x0A>`, which stand for one byte of a character.
    byte_tokens: Bits,
    how: How,
}

enum How {
    /// By the table.
    Bytes(Rule),
    /// By the tokenizer, and why.
    Tokenizer(Arc<tokenizers::Tokenizer>, String),
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match &self.how {
            How::Bytes(rule) => format!("{rule:?}"),
            How::Tokenizer(_, why) => format!("by the tokenizer: {why}"),
        };
        f.debug_struct("Vocabulary").field("size", &self.size()).field("how", &how).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The texts of `tokenizer`'s tokens. Takes up to a second of CPU for a large vocabulary.
    pub(crate) fn of(tokenizer: &Arc<tokenizers::Tokenizer>) -> Self {
        let rule = Rule::of(tokenizer.get_decoder());
        let by_tokenizer = |why: String| Self::by_tokenizer(tokenizer, why);
        let rule = match rule {
            Ok(rule) => rule,
            Err(why) => return by_tokenizer(why),
        };
        let tokens = match tokens(tokenizer) {
            Ok(tokens) => tokens,
            Err(why) => return by_tokenizer(why),
        };
        let mut table = Self::empty(How::Bytes(rule.clone()));
        for token in tokens {
            let Some(token) = token else {
                table.push(&[], false, false);
                continue;
            };
            let special = tokenizer.get_added_vocabulary().is_special_token(&token);
            let piece = rule.piece(&token);
            table.push(&piece.bytes, special, piece.is_byte);
        }
        match table.disagreement(tokenizer) {
            Some(why) => by_tokenizer(why),
            None => table,
        }
    }

    fn empty(how: How) -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), special: Bits::default(), byte_tokens: Bits::default(), how }
    }

    /// Each token as the tokenizer decodes it alone.
    fn by_tokenizer(tokenizer: &Arc<tokenizers::Tokenizer>, why: String) -> Self {
        let mut table = Self::empty(How::Tokenizer(tokenizer.clone(), why));
        let ids = tokens(tokenizer).unwrap_or_default();
        for (id, token) in (0..).zip(ids) {
            let Some(token) = token else {
                table.push(&[], false, false);
                continue;
            };
            let special = tokenizer.get_added_vocabulary().is_special_token(&token);
            table.push(by_its_decoder(tokenizer, &[id], false).as_bytes(), special, false);
        }
        table
    }

    fn push(&mut self, bytes: &[u8], special: bool, is_byte: bool) {
        self.bytes.extend_from_slice(bytes);
        // A tokenizer file of 4 GB does not load.
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.special.push(special);
        self.byte_tokens.push(is_byte);
    }

    /// The text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids that are no tokens give nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let shown = ids.iter().copied().filter(|id| !(skip_special_tokens && self.is_special(*id)));
        let rule = match &self.how {
            How::Bytes(rule) => rule,
            How::Tokenizer(tokenizer, _) => return by_its_decoder(tokenizer, ids, skip_special_tokens),
        };
        let mut text = match rule.invalid {
            Invalid::Lossy => {
                let mut bytes = Vec::with_capacity(ids.len() * 4);
                shown.clone().for_each(|id| bytes.extend_from_slice(self.token_bytes(id)));
                String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
            Invalid::EachOfARun => self.by_runs(shown.clone()),
        };
        match rule.front {
            Front::Spaces(0) => {}
            Front::Spaces(most) => {
                let spaces = text.bytes().take(most).take_while(|byte| *byte == b' ').count();
                text.drain(..spaces);
            }
            Front::FirstToken => {
                let first = shown.into_iter().find(|id| self.knows(*id)).map_or(&[][..], |id| self.token_bytes(id));
                let kept: String = String::from_utf8_lossy(first).chars().filter(|letter| *letter != ' ').collect();
                text.replace_range(..first.len(), &kept);
            }
        }
        text
    }

    /// Byte tokens in a row are a text if all of them together are one; else each is U+FFFD.
    fn by_runs(&self, ids: impl Iterator<Item = u32>) -> String {
        let mut text = String::new();
        let mut run: Vec<u8> = Vec::new();
        let end_of_run = |run: &mut Vec<u8>, text: &mut String| {
            match std::str::from_utf8(run) {
                Ok(part) => text.push_str(part),
                Err(_) => text.extend(run.iter().map(|_| char::REPLACEMENT_CHARACTER)),
            }
            run.clear();
        };
        for id in ids {
            let bytes = self.token_bytes(id);
            if self.byte_tokens.get(id) {
                run.extend_from_slice(bytes);
            } else if self.knows(id) {
                end_of_run(&mut run, &mut text);
                text.push_str(&String::from_utf8_lossy(bytes));
            }
        }
        end_of_run(&mut run, &mut text);
        text
    }

    /// The bytes a token adds to a text that something precedes; one byte of a longer character as it is. Empty for an id
    /// that is no token. Where the vocabulary is not bytewise, the text of the token alone.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(end) = self.ends.get(at) else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }

    /// Whether a text that goes on is the bytes of its tokens one after the other. If not, only [`Vocabulary::decode`] of
    /// several tokens tells what the last of them adds.
    pub fn is_bytewise(&self) -> bool {
        matches!(self.how, How::Bytes(_))
    }

    /// Why [`Vocabulary::is_bytewise`] is false.
    pub fn why_not_bytewise(&self) -> Option<&str> {
        match &self.how {
            How::Bytes(_) => None,
            How::Tokenizer(_, why) => Some(why),
        }
    }

    /// Whether `skip_special_tokens` leaves the token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id)
    }

    /// Whether the token stands for one byte (`<0x0A>`), so that it may be a part of a character.
    pub fn is_byte_token(&self, id: u32) -> bool {
        self.byte_tokens.get(id)
    }

    /// Whether `id` is a token. One without bytes (of an odd vocabulary) counts as none.
    fn knows(&self, id: u32) -> bool {
        !self.token_bytes(id).is_empty()
    }

    /// The id of a special token by its text, as configurations name it.
    pub(crate) fn id_of_special(&self, text: &str) -> Option<u32> {
        (0..).take(self.size()).find(|id| self.is_special(*id) && self.token_bytes(*id) == text.as_bytes())
    }

    /// One more than the largest id.
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// The first ids at which this table and `tokenizer` differ.
    fn disagreement(&self, tokenizer: &tokenizers::Tokenizer) -> Option<String> {
        let all: Vec<u32> = (0..).take(self.size()).collect();
        // In order, and then in an order in which other tokens meet.
        let mixed: Vec<u32> = all.iter().map(|id| (u64::from(*id) * 7919 % self.size().max(1) as u64) as u32).collect();
        let differs = |ids: &[u32]| tokenizer.decode(ids, false).ok().is_none_or(|expected| expected != self.decode(ids, false));
        let found = all.chunks(CHECKED_AT_ONCE).chain(mixed.chunks(CHECKED_AT_ONCE)).find(|ids| differs(ids))?;
        Some(format!("the table of bytes and the tokenizer differ on the ids {found:?}"))
    }
}

/// What the tokenizer's own decoder makes of `ids`. Some decoders panic on no tokens at all, or on short ones: there is no
/// text then.
fn by_its_decoder(tokenizer: &tokenizers::Tokenizer, ids: &[u32], skip_special_tokens: bool) -> String {
    let decoded = catch_unwind(AssertUnwindSafe(|| tokenizer.decode(ids, skip_special_tokens)));
    decoded.ok().and_then(Result::ok).unwrap_or_default()
}

/// The token of each id up to the largest, as the tokenizer's decoder sees it.
fn tokens(tokenizer: &tokenizers::Tokenizer) -> Result<Vec<Option<String>>, String> {
    let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
    if largest as usize >= MAX_IDS {
        return Err(format!("the vocabulary has ids up to {largest}; tables are made for up to {MAX_IDS}"));
    }
    Ok((0..=largest).map(|id| tokenizer.id_to_token(id)).collect())
}

/// One bit for each id.
#[derive(Default)]
struct Bits {
    words: Vec<u64>,
    length: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.length.is_multiple_of(64) {
            self.words.push(0);
        }
        if let Some(last) = self.words.last_mut() {
            *last |= u64::from(bit) << (self.length % 64);
        }
        self.length += 1;
    }

    fn get(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }
}

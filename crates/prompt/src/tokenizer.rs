//! A tokenizer from `tokenizer.json`: `fastokens`, some thirty times as fast, where it takes the file and agrees with
//! `tokenizers` on the probes below; else `tokenizers`, which takes every file. Special tokens are added by the file's
//! post-processor and by nothing else, as transformers 5 does it (`add_bos_token` of `tokenizer_config.json` does not
//! count once there is a `tokenizer.json`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::error::LoadError;
use crate::files::File;
use crate::vocabulary::Vocabulary;

/// Memory for token ids of text between special tokens, per model: a conversation repeats all but its newest turns.
const SEGMENT_CACHE_BYTES: usize = 64 << 20;

/// Which tokenizer a folder got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `fastokens`
    Fast,
    /// `tokenizers`
    Plain,
}

/// A loaded tokenizer, shared by threads.
pub(crate) enum Tokenizer {
    Fast(Box<fastokens::Tokenizer>),
    Plain(Arc<tokenizers::Tokenizer>),
}

/// What loading a tokenizer gives.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) engine: Engine,
    /// Why that engine.
    pub(crate) reason: String,
}

/// Added tokens tried in a text, in the order of their ids.
const MAX_ADDED_PROBES: usize = 64;
/// Text on which the two must agree: scripts, spaces, digits, controls, unassigned and combining characters.
const PROBES: [&str; 12] = [
    "",
    " ",
    "Hello world",
    "  two  spaces\n\n\tand\r\nlines   ",
    "don't we'LL they've I'm 'tis",
    "1234567890 3.14 1,000 ２３ Ⅷ",
    "fn main() { println!(\"{:?}\", x); } // snake_case CamelCase",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย",
    "漢字かな交じり文。한국어 문장",
    "👩‍👩‍👧 🇩🇪 e\u{301} é \u{200b}\u{feff}\u{a0}",
    "\u{0}\u{1}\u{7f}\u{fffd}\u{e000}",
    "{\"a\": [1, true, null]} <b>&amp;</b> https://x.y/z?q=1#f",
];

impl Tokenizer {
    /// The tokenizer of `file`. `config` is the model's `tokenizer_config.json`, null where there is none.
    pub(crate) fn load(file: &File, config: &Value) -> Result<Loaded, LoadError> {
        let path = file.path.as_path();
        let Some(bytes) = file.read()? else {
            return Err(LoadError::Tokenizer { path: path.into(), reason: "there is no such file".to_owned() });
        };
        let plain = Self::plain(&bytes, config).map(Arc::new);
        let fast = Self::fast(path);
        let (plain, fast) = match (plain, fast) {
            (Ok(plain), fast) => (plain, fast),
            (Err(error), Ok(_)) => return Err(LoadError::Tokenizer { path: path.into(), reason: error }),
            (Err(plain), Err(fast)) => {
                return Err(LoadError::Tokenizer { path: path.into(), reason: format!("tokenizers: {plain}; fastokens: {fast}") });
            }
        };
        let vocabulary = Vocabulary::of(&plain);
        let (tokenizer, engine, reason) = match fast {
            Ok(fast) => match disagreement(&fast, &plain) {
                None => (Self::Fast(Box::new(fast)), Engine::Fast, "fastokens agrees with tokenizers on all probes".to_owned()),
                Some(why) => (Self::Plain(plain), Engine::Plain, why),
            },
            Err(error) => (Self::Plain(plain), Engine::Plain, format!("fastokens does not take this tokenizer: {error}")),
        };
        Ok(Loaded { tokenizer, vocabulary, engine, reason })
    }

    /// Reads the file again, and `tokenizer_config.json` beside it; what comes of another state of it fails the probes.
    fn fast(path: &Path) -> Result<fastokens::Tokenizer, String> {
        let mut fast = fastokens::Tokenizer::from_file(path).map_err(|error| error.to_string())?;
        // Engines ask for neither, whatever the file says.
        fast.set_truncation(None);
        fast.set_padding(None);
        fast.enable_segment_cache(SEGMENT_CACHE_BYTES);
        Ok(fast)
    }

    fn plain(json: &[u8], config: &Value) -> Result<tokenizers::Tokenizer, String> {
        let mut plain = tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        plain.with_truncation(None).map_err(|error| error.to_string())?;
        plain.with_padding(None);
        let missing = tokens_only_in_config(config, &plain);
        plain.add_tokens(missing).map_err(|error| error.to_string())?;
        Ok(plain)
    }

    /// Bytes of one text worth tokenising: about two seconds of a core, some millions of tokens.
    pub(crate) fn longest_text(&self) -> usize {
        match self {
            Self::Fast(_) => 32 << 20,
            Self::Plain(_) => 4 << 20,
        }
    }

    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        match self {
            Self::Fast(fast) => fast.encode_with_special_tokens(text, add_special_tokens).map_err(|error| error.to_string()),
            Self::Plain(plain) => {
                plain.encode_fast(text, add_special_tokens).map(|encoding| encoding.get_ids().to_vec()).map_err(|error| error.to_string())
            }
        }
    }
}

/// Tokens that `added_tokens_decoder` of `tokenizer_config.json` has and `tokenizer.json` has not, in the order of their
/// ids, as transformers adds them.
fn tokens_only_in_config(config: &Value, plain: &tokenizers::Tokenizer) -> Vec<tokenizers::AddedToken> {
    let Some(decoder) = config["added_tokens_decoder"].as_object() else {
        return Vec::new();
    };
    let mut tokens: Vec<(u64, &Value)> = decoder.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
    tokens.sort_by_key(|(id, _)| *id);
    tokens
        .into_iter()
        .filter_map(|(_, token)| {
            let content = token["content"].as_str().filter(|content| plain.token_to_id(content).is_none())?;
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            Some(
                tokenizers::AddedToken::from(content, flag("special"))
                    .lstrip(flag("lstrip"))
                    .rstrip(flag("rstrip"))
                    .single_word(flag("single_word"))
                    .normalized(flag("normalized")),
            )
        })
        .collect()
}

/// The first probe on which the tokenizers differ.
fn disagreement(fast: &fastokens::Tokenizer, plain: &tokenizers::Tokenizer) -> Option<String> {
    let added: BTreeMap<u32, _> = plain.get_added_tokens_decoder().into_iter().collect();
    let around = added.values().take(MAX_ADDED_PROBES).map(|token| {
        let token = &token.content;
        format!("a {token} b{token}\n{token}{token}c")
    });
    let mut probes = PROBES.iter().map(|probe| (*probe).to_owned()).chain(around);
    probes.find_map(|probe| {
        [false, true].into_iter().find_map(|special| {
            let expected = plain.encode_fast(probe.as_str(), special).map(|encoding| encoding.get_ids().to_vec()).ok();
            let found = fast.encode_with_special_tokens(&probe, special).ok();
            (expected != found).then(|| format!("fastokens and tokenizers differ on {probe:?}"))
        })
    })
}

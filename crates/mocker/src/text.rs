//! Text to tokens and back, and the chat rendering of the simulated engine.
//!
//! The rendering is this crate's own and fixed, whatever template a model folder carries: each message is
//! `<|role|>`, newline, content, `<|end|>`, newline; then, unless the body says otherwise, `<|assistant|>` and a newline.
//! The text parts of a content list are joined without anything between; other parts and tools are left out. The
//! template in [`crate::folder`] renders the very same text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::folder;
use crate::model::Vocabulary;

/// Words an engine answers with at most.
const MAX_WORDS: usize = 2_048;
/// With fewer whole words than this, any readable token will do.
const MIN_WORDS: usize = 16;

/// A tokenizer and what the engine can say with it.
pub(crate) struct Text {
    tokenizer: Tokenizer,
    words: Arc<[u32]>,
    eos: Option<u32>,
    vocabulary_size: u32,
}

/// Why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Text {
    /// The embedded tokenizer.
    pub(crate) fn embedded() -> Result<Self, FolderError> {
        let [(_, tokenizer), (_, config), _, _] = folder::FILES;
        Self::parse(Path::new("embedded"), tokenizer, Some(config))
    }

    /// The tokenizer of a model folder: `tokenizer.json`, and `tokenizer_config.json` for the end-of-sequence token.
    pub(crate) fn load(dir: &Path) -> Result<Self, FolderError> {
        let path = dir.join("tokenizer.json");
        let tokenizer = std::fs::read(&path).map_err(|source| FolderError::Read { path: path.clone(), source })?;
        let config = std::fs::read(dir.join("tokenizer_config.json")).ok();
        Self::parse(&path, &tokenizer, config.as_deref())
    }

    fn parse(path: &Path, tokenizer: &[u8], config: Option<&[u8]>) -> Result<Self, FolderError> {
        let content = |reason: String| FolderError::Content { path: path.to_owned(), reason };
        let tokenizer = Tokenizer::from_bytes(tokenizer).map_err(|error| content(error.to_string()))?;
        let config: Value = serde_json::from_slice(config.unwrap_or(b"{}")).map_err(|error| content(error.to_string()))?;
        let eos = config["eos_token"].as_str().or(config["eos_token"]["content"].as_str());
        let words = words(&tokenizer);
        if words.is_empty() {
            return Err(content("no token of the vocabulary decodes to readable text".to_owned()));
        }
        Ok(Self {
            eos: eos.and_then(|token| tokenizer.token_to_id(token)),
            vocabulary_size: tokenizer.get_vocab_size(true) as u32,
            words: words.into(),
            tokenizer,
        })
    }

    /// What answers are made of.
    pub(crate) fn vocabulary(&self, mean_tokens: u32) -> Vocabulary {
        Vocabulary { words: self.words.clone(), eos: self.eos, mean_tokens }
    }

    /// Token ids are below this.
    pub(crate) fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    pub(crate) fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, String> {
        let encoding = self.tokenizer.encode_fast(text, special == Special::Add).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of tokens, special ones left out.
    pub(crate) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.tokenizer.decode(tokens, true).map_err(|error| error.to_string())
    }

    /// Text of one generated token. Such tokens are whole words, so that texts can be joined.
    pub(crate) fn word(&self, token: u32) -> String {
        if Some(token) == self.eos {
            return String::new();
        }
        let name = self.tokenizer.id_to_token(token).unwrap_or_default();
        match space_word(&name) {
            Some(word) => format!(" {word}"),
            None => self.decode(&[token]).unwrap_or_default(),
        }
    }

    /// The vocabulary's name of a token.
    pub(crate) fn name(&self, token: u32) -> String {
        self.tokenizer.id_to_token(token).unwrap_or_default()
    }
}

/// Whether the tokenizer's own special tokens are added around a text, as engines do for plain prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Add,
    Leave,
}

/// The letters of a token that is a space and a lower-case word.
fn space_word(name: &str) -> Option<&str> {
    let word = name.strip_prefix(['Ġ', '▁'])?;
    (word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(word)
}

/// Tokens to answer with: words that do not begin a longer one, which leaves out the fragments merges pass through.
fn words(tokenizer: &Tokenizer) -> Vec<u32> {
    let vocabulary = tokenizer.get_vocab(false);
    let mut named: Vec<(&str, u32)> = vocabulary.iter().filter_map(|(name, &id)| Some((space_word(name)?, id))).collect();
    named.sort_unstable();
    let longer = |at: usize| named.get(at + 1).is_some_and(|(next, _)| next.starts_with(named[at].0));
    let mut words: Vec<u32> = (0..named.len()).filter(|&at| !longer(at)).map(|at| named[at].1).take(MAX_WORDS).collect();
    if words.len() < MIN_WORDS {
        let readable = |id: &u32| tokenizer.decode(&[*id], true).is_ok_and(|text| !text.is_empty() && !text.contains('\u{fffd}'));
        let mut ids: Vec<u32> = vocabulary.into_values().collect();
        ids.sort_unstable();
        words = ids.into_iter().filter(readable).take(MAX_WORDS).collect();
    }
    words
}

/// A message of a chat body.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChatMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

/// How a chat ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With the head of an answer.
    Prompt,
    /// After the last message.
    Closed,
    /// Inside the last message, which the answer goes on with.
    Open,
}

/// The text of a chat.
pub(crate) fn render(messages: &[ChatMessage], ending: Ending) -> String {
    const END: &str = "<|end|>\n";
    let mut text = String::new();
    for message in messages {
        text.push_str(&format!("<|{}|>\n", message.role));
        match &message.content {
            Value::String(content) => text.push_str(content),
            Value::Array(parts) => {
                parts
                    .iter()
                    .filter(|part| part["type"] == "text")
                    .filter_map(|part| part["text"].as_str())
                    .for_each(|part| text.push_str(part));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
        }
        text.push_str(END);
    }
    match ending {
        Ending::Prompt => text.push_str("<|assistant|>\n"),
        Ending::Closed => {}
        Ending::Open => text.truncate(text.len().saturating_sub(END.len())),
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(value: Value) -> Vec<ChatMessage> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn chats_render_by_the_documented_rule() {
        let chat = messages(json!([
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null},
        ]));
        let closed = "<|system|>\nbe kind<|end|>\n<|user|>\nab<|end|>\n<|assistant|>\n<|end|>\n";
        assert_eq!(render(&chat, Ending::Closed), closed);
        assert_eq!(render(&chat, Ending::Prompt), format!("{closed}<|assistant|>\n"));
        assert_eq!(render(&chat, Ending::Open), closed.strip_suffix("<|end|>\n").unwrap());
    }

    #[test]
    fn the_embedded_template_renders_the_same_text() {
        let [_, _, (_, template), _] = folder::FILES;
        let mut environment = minijinja::Environment::new();
        // As Hugging Face's renderer is set up.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.add_template("chat", std::str::from_utf8(template).unwrap()).unwrap();
        let template = environment.get_template("chat").unwrap();
        for chat in [
            json!([]),
            json!([{"role": "system", "content": " two\nlines \n"}, {"role": "user", "content": "a {{ b }}"}]),
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b\n"}]}]),
            json!([{"role": "assistant", "content": null}, {"role": "tool", "content": ""}, {"role": "assistant"}]),
        ] {
            for (ending, add_generation_prompt) in [(Ending::Prompt, true), (Ending::Closed, false)] {
                let context = json!({"messages": chat, "add_generation_prompt": add_generation_prompt});
                assert_eq!(template.render(&context).unwrap(), render(&messages(chat.clone()), ending), "{chat}");
            }
        }
    }

    #[test]
    fn plain_prompts_get_the_first_token_and_chats_do_not() {
        let text = Text::embedded().unwrap();
        let plain = text.encode("the quiet river", Special::Add).unwrap();
        let bare = text.encode("the quiet river", Special::Leave).unwrap();
        assert_eq!(plain[1..], bare);
        assert_eq!(text.name(plain[0]), "<|begin|>");
        assert_eq!(text.decode(&plain).unwrap(), "the quiet river");
        // Roles and ends of the chat rendering are single special tokens.
        let chat = text.encode("<|user|>\nx<|end|>\n", Special::Leave).unwrap();
        assert_eq!(chat.len(), 5);
    }

    /// An answer that comes back as part of the next prompt must be the tokens that were generated, else no turn would
    /// hit the blocks of the answer before.
    #[test]
    fn generated_words_survive_the_way_through_text() {
        let text = Text::embedded().unwrap();
        let words: Vec<u32> = text.vocabulary(10).words.to_vec();
        assert!(words.len() > 100, "{} words", words.len());
        let answer: String = words.iter().map(|&word| text.word(word)).collect();
        assert_eq!(text.encode(&answer, Special::Leave).unwrap(), words);
        let eos = text.vocabulary(10).eos.unwrap();
        assert_eq!(text.word(eos), "");
        assert!(!words.contains(&eos));
    }

    #[test]
    fn the_folder_written_is_the_folder_embedded() {
        let dir = std::env::temp_dir().join(format!("mocker-folder-{}", std::process::id()));
        folder::write(&dir).unwrap();
        let (loaded, embedded) = (Text::load(&dir).unwrap(), Text::embedded().unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(loaded.words, embedded.words);
        assert_eq!((loaded.eos, loaded.vocabulary_size), (embedded.eos, embedded.vocabulary_size));
        assert!(Text::load(&dir).is_err());
    }
}

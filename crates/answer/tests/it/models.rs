//! Small tokenizers of each kind, written here, and loaded as a model's folder is; `tokenizers` itself says what ids are as text.

use std::sync::{Arc, LazyLock};

use prompt::{Folder, LoadOptions, Vocabulary};
use serde_json::{Value, json};

pub(crate) struct Model {
    pub(crate) vocabulary: Arc<Vocabulary>,
    tokenizer: tokenizers::Tokenizer,
}

/// GPT-2's kind. Ids 0 to 255 are the bytes, then words, then an added and two special tokens.
pub(crate) static BYTE_LEVEL: LazyLock<Model> = LazyLock::new(|| {
    let words = ["hello", "Ġworld", "ab", "ba", "abc", "ĠĠ", "ðŁ", "æĹ¥"];
    let mut tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    tokens.extend(words.map(str::to_owned));
    model(
        &tokens,
        false,
        &[("<tool>", false), ("<|eos|>", true), ("<|end|>", true)],
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
    )
});

/// Ids of [`BYTE_LEVEL`].
pub(crate) const HELLO: u32 = 256;
pub(crate) const WORLD: u32 = 257;
pub(crate) const AB: u32 = 258;
pub(crate) const TOOL: u32 = 264;
pub(crate) const EOS: u32 = 265;
pub(crate) const END: u32 = 266;

/// GPT-2's kind, where the markers of calls are special tokens.
pub(crate) fn with_markers() -> Model {
    let tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    model(&tokens, false, &[("<tool_call>", true), ("</tool_call>", true), ("<|end|>", true)], decoder)
}

/// Llama 2's kind: id 0 is unknown, 1 to 256 are byte tokens, then words, then special tokens.
pub(crate) static SENTENCEPIECE: LazyLock<Model> = LazyLock::new(|| {
    let mut tokens = vec!["<unk>".to_owned()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "▁▁", "▁the", "the", "é", "▁日", "s", "▁▁x"].map(str::to_owned));
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    model(&tokens, true, &[("<s>", true), ("</s>", true)], decoder)
});

/// The first id of [`SENTENCEPIECE`] that is no byte token.
pub(crate) const SPACE: u32 = 257;

/// BERT's kind, where a token cannot be read alone.
pub(crate) static WORDPIECE: LazyLock<Model> = LazyLock::new(|| {
    let words = ["[UNK]", "hello", "##lo", "world", ".", "日", "##本", "##s", "x"].map(str::to_owned);
    model(&words, false, &[("[CLS]", true), ("[SEP]", true)], json!({"type": "WordPiece", "prefix": "##", "cleanup": false}))
});

/// T5's kind.
pub(crate) static METASPACE: LazyLock<Model> = LazyLock::new(|| {
    let words = ["<unk>", "▁hello", "lo", "▁", "▁world", "é", "▁▁"].map(str::to_owned);
    let decoder = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    model(&words, false, &[("</s>", true)], decoder)
});

impl Model {
    /// The text of `ids`, by `tokenizers`.
    pub(crate) fn text(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.tokenizer.decode(ids, skip_special_tokens).expect("decodes")
    }

    /// The id of an added token.
    pub(crate) fn marker(&self, text: &str) -> u32 {
        self.tokenizer.token_to_id(text).expect("a token")
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.vocabulary.size()).expect("small")
    }
}

/// The ids of an ASCII text in [`BYTE_LEVEL`], one for each character.
pub(crate) fn ascii(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn model(tokens: &[String], byte_fallback: bool, added: &[(&str, bool)], decoder: Value) -> Model {
    let vocabulary: serde_json::Map<String, Value> = tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let added: Vec<Value> = added
        .iter()
        .enumerate()
        .map(|(at, (content, special))| {
            json!({"id": tokens.len() + at, "content": content, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": byte_fallback, "ignore_merges": false, "vocab": vocabulary, "merges": []},
    });
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, file.to_string()).expect("written");
    let loaded = Folder::load(folder.path(), &LoadOptions::default()).expect("loads");
    Model { vocabulary: loaded.vocabulary(), tokenizer: tokenizers::Tokenizer::from_file(&path).expect("loads") }
}

/// The character of the byte-level alphabet that stands for `byte`.
fn letter(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count();
    char::from_u32(0x100 + u32::try_from(before).expect("small")).expect("a character")
}

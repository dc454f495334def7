//! Ids to text equal `tokenizers`' own decoding: for every kind of decoder, over random ids, with special tokens and without.

use std::path::Path;

use prompt::{Folder, LoadOptions};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::data;

/// Whether the text is known by a table, and how many ids there are.
struct Found {
    bytewise: bool,
    size: usize,
}

fn agree(folder: &Path) -> Found {
    let loaded = Folder::load(folder, &LoadOptions::default()).expect("loads");
    let vocabulary = loaded.vocabulary();
    let library = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).expect("loads");
    let largest = u32::try_from(vocabulary.size()).expect("few ids");
    let is_letter = |id: &u32| vocabulary.token_bytes(*id) == b"a" && !vocabulary.is_byte_token(*id);
    let letter = (0..largest).find(is_letter).unwrap_or(0);
    // Ids beyond the last, too: they are no tokens.
    let id = id_of(largest);
    let ids = prop::collection::vec(id, 0..40);
    let mut runner = TestRunner::new(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&(ids, any::<bool>()), |(ids, skip)| {
            prop_assert_eq!(vocabulary.decode(&ids, skip), library.decode(&ids, skip).expect("decodes"));
            // The text of tokens behind another is their bytes, as far as those are characters.
            let bytes: Vec<u8> = ids.iter().flat_map(|id| vocabulary.token_bytes(*id).to_vec()).collect();
            if let Ok(text) = std::str::from_utf8(&bytes)
                && vocabulary.is_bytewise()
            {
                let behind: Vec<u32> = [letter].into_iter().chain(ids).collect();
                let whole = library.decode(&behind, false).expect("decodes");
                prop_assert_eq!(whole, library.decode(&[letter], false).expect("decodes") + text);
            }
            Ok(())
        })
        .expect("equal");
    for id in 0..largest {
        let special = library.id_to_token(id).is_some_and(|token| library.get_added_vocabulary().is_special_token(&token));
        assert_eq!(vocabulary.is_special(id), special, "id {id}");
    }
    Found { bytewise: vocabulary.is_bytewise(), size: vocabulary.size() }
}

/// Ids of all kinds, the first few hundred (special and byte tokens) more often.
fn id_of(largest: u32) -> impl Strategy<Value = u32> {
    prop_oneof![0..largest, 0..largest.min(300), Just(largest + 7)]
}

/// A folder with one tokenizer of `vocabulary` and `decoder`; `<s>`, `</s>` and `<|tool|>` are special, `<note>` is added.
fn folder(model: Value, decoder: &Value) -> tempfile::TempDir {
    let size = match &model["vocab"] {
        Value::Array(list) => list.len(),
        vocabulary => vocabulary.as_object().map_or(0, Map::len),
    };
    let added = |id: usize, content: &str, special: bool| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        // One of them behind a hole.
        "added_tokens": [added(size, "<s>", true), added(size + 1, "</s>", true), added(size + 2, "<note>", false), added(size + 5, "<|tool|>", true)],
        "decoder": decoder, "model": model,
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    folder
}

/// Pieces as sentencepiece writes them, and all byte tokens.
fn sentencepiece() -> Value {
    let mut pieces: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    pieces.extend(
        ["▁", "▁▁", "▁▁▁▁", "▁the", "the", "a", "▁a", "b", ".", "é", "漢", "🙂", "▁🙂", "a▁b", "<0x0>", "<0xZZ>"].map(String::from),
    );
    let vocabulary: Map<String, Value> = pieces.into_iter().enumerate().map(|(id, piece)| (piece, id.into())).collect();
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary, "merges": []})
}

const REPLACE: &str = r#"{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}"#;

fn steps(last: &[Value]) -> Value {
    let replace: Value = serde_json::from_str(REPLACE).expect("JSON");
    let mut steps = vec![replace, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    steps.extend_from_slice(last);
    json!({"type": "Sequence", "decoders": steps})
}

#[test]
fn byte_level() {
    let found = agree(&data("models/tiny-llama"));
    assert!(found.bytewise);
    assert_eq!(found.size, 2048);
    assert!(agree(&data("../crates/mocker/model")).bytewise);
}

#[test]
fn byte_level_with_a_modern_pattern() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let built = crate::tokenizers_agree::built(crate::tokenizers_agree::PATTERN);
    std::fs::write(folder.path().join("tokenizer.json"), built.to_string()).expect("written");
    assert!(agree(folder.path()).bytewise);
}

/// Llama 2, Mistral, Phi: the text loses a space in front.
#[test]
fn sentencepiece_with_a_stripped_space() {
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let folder = folder(sentencepiece(), &steps(&[strip]));
    assert!(agree(folder.path()).bytewise);
    let vocabulary = Folder::load(folder.path(), &LoadOptions::default()).expect("loads").vocabulary();
    assert_eq!(vocabulary.token_bytes(0xe2), [0xe2]);
    assert!(vocabulary.is_byte_token(0xe2) && !vocabulary.is_byte_token(256));
    assert_eq!(vocabulary.token_bytes(259), b" the");
    assert_eq!(vocabulary.token_bytes(99_999), b"");
}

/// Gemma: it does not.
#[test]
fn sentencepiece_without() {
    assert!(agree(folder(sentencepiece(), &steps(&[])).path()).bytewise);
}

#[test]
fn metaspace() {
    for scheme in ["always", "first", "never"] {
        let decoder = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
        let unigram = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
            ["<unk>", 0.0], ["▁", -1.0], ["▁▁", -2.0], ["▁the", -3.0], ["a", -4.0], ["b▁c", -5.0], ["漢", -6.0], ["🙂", -7.0]]});
        assert!(agree(folder(unigram, &decoder).path()).bytewise, "{scheme}");
    }
}

/// What a table cannot say is left to the tokenizer.
#[test]
fn by_the_tokenizer() {
    let words = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "play": 1, "##ing": 2, "chess": 3, ".": 4, "'": 5, "s": 6, "n": 7, "do": 8}});
    let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    assert!(!agree(folder(words.clone(), &decoder).path()).bytewise);
    // No decoder: spaces between all tokens.
    let folder = folder(words, &Value::Null);
    assert!(!agree(folder.path()).bytewise);
    let vocabulary = Folder::load(folder.path(), &LoadOptions::default()).expect("loads").vocabulary();
    assert!(vocabulary.why_not_bytewise().expect("a reason").contains("no decoder"));
    assert_eq!(vocabulary.token_bytes(1), b"play");
}

/// A decoder that panics on texts without tokens costs no request.
#[test]
fn a_decoder_that_panics() {
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": "</w>",
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"a</w>": 0, "b": 1}, "merges": []});
    let folder = folder(model, &json!({"type": "BPEDecoder", "suffix": "</w>"}));
    let vocabulary = Folder::load(folder.path(), &LoadOptions::default()).expect("loads").vocabulary();
    assert_eq!(vocabulary.decode(&[], true), "");
    assert_eq!(vocabulary.decode(&[2], true), "", "a special token alone");
    assert_eq!(vocabulary.decode(&[1, 0, 1, 0], true), "ba ba");
}

#[test]
#[ignore = "needs model folders, separated by colons, in PROMPT_MODELS"]
fn on_real_models() {
    let folders = std::env::var("PROMPT_MODELS").expect("PROMPT_MODELS names model folders");
    for folder in folders.split(':') {
        let found = agree(folder.as_ref());
        assert!(found.bytewise, "{folder}");
    }
}

//! `fastokens` and `tokenizers` give the same ids: on the tiny model and on a byte-level BPE with a modern split pattern
//! built here. And the slow one steps in where the fast one does not take a file.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use prompt::{Counters, Endpoint, Engine, Folder, LoadOptions};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::{data, parse};

/// The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others move up.
fn alphabet() -> Vec<char> {
    let mut moved = 0_u32;
    (0..=255_u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                moved += 1;
                char::from_u32(255 + moved).expect("in range")
            }
        })
        .collect()
}

/// A tokenizer.json: 256 bytes, and merges learned greedily from a small text.
pub(crate) fn built(pattern: &str) -> Value {
    let letters = alphabet();
    let text = include_str!("tokenizers_agree.rs").to_owned() + "Привет мир, привет! 漢字かな 漢字 한국어 été naïve 1234 12345 don't we'll";
    // Not the special tokens, which must not become ordinary ones as well.
    let words = text.split_inclusive(' ').filter(|word| !word.contains("<|"));
    let mut words: Vec<Vec<String>> = words.map(|word| word.bytes().map(|byte| letters[byte as usize].to_string()).collect()).collect();
    let mut vocabulary: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    for _ in 0..400 {
        let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for word in &words {
            for pair in word.windows(2) {
                *pairs.entry((&pair[0], &pair[1])).or_default() += 1;
            }
        }
        let Some(((left, right), _)) = pairs.into_iter().max_by_key(|(_, count)| *count) else { break };
        let (left, right) = (left.to_owned(), right.to_owned());
        let joined = format!("{left}{right}");
        for word in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == left && word[at + 1] == right {
                    word[at].clone_from(&joined);
                    word.remove(at + 1);
                }
                at += 1;
            }
        }
        if !vocabulary.contains(&joined) {
            vocabulary.push(joined);
        }
        merges.push(json!([left, right]));
    }
    let special = vocabulary.len();
    let vocabulary: serde_json::Map<String, Value> = vocabulary.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let added = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "added_tokens": [added(special, "<|im_start|>"), added(special + 1, "<|im_end|>"), added(special + 2, "<|begin|>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [special + 2], "tokens": ["<|begin|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": merges},
    })
}

/// The split pattern of Qwen and cl100k.
pub(crate) const PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn agree(tokenizer: &std::path::Path) {
    let folder = Folder::load(tokenizer, &LoadOptions { text_cache_bytes: 0 }).expect("loads");
    assert_eq!(folder.report().tokenizer, Engine::Fast, "{}", folder.report().tokenizer_reason);
    let mut plain = tokenizers::Tokenizer::from_file(tokenizer.join("tokenizer.json")).expect("loads");
    plain.with_truncation(None).expect("no truncation");
    let mut runner = TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() });
    let pieces = prop_oneof![
        any::<String>(),
        "[a-zA-Z' ]{0,30}",
        "[ \t\r\n]{0,12}",
        "\\PC{0,40}",
        "[0-9.,]{0,10}",
        Just("<|im_start|>".to_owned()),
        Just("<|im_end|>\n".to_owned()),
        Just("<|begin|>".to_owned()),
        Just("漢字かな\u{301}é e\u{301}".to_owned()),
    ];
    let texts = (prop::collection::vec(pieces, 0..12), any::<bool>());
    runner
        .run(&texts, |(pieces, special)| {
            let text = pieces.concat();
            let expected = plain.encode_fast(text.as_str(), special).expect("encodes");
            prop_assume!(!text.is_empty());
            let body = json!({"model": "m", "prompt": [text], "add_special_tokens": special});
            let request = parse(Endpoint::Completions, &body).expect("a good body");
            let found = folder.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids").remove(0);
            prop_assert_eq!(&found.ids[..], expected.get_ids());
            Ok(())
        })
        .expect("the tokenizers agree");
}

#[test]
fn on_the_tiny_model() {
    agree(&data("models/tiny-llama"));
}

#[test]
fn on_a_built_vocabulary() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("tokenizer.json"), built(PATTERN).to_string()).expect("written");
    agree(folder.path());
}

#[test]
#[ignore = "needs model folders, separated by colons, in PROMPT_MODELS"]
fn on_real_models() {
    let folders = std::env::var("PROMPT_MODELS").expect("PROMPT_MODELS names model folders");
    for folder in folders.split(':') {
        agree(folder.as_ref());
    }
}

#[test]
fn the_slow_one_takes_what_the_fast_one_does_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}, "unk_token": "[UNK]"}});
    std::fs::write(folder.path().join("tokenizer.json"), words.to_string()).expect("written");
    let loaded = Folder::load(folder.path(), &LoadOptions::default()).expect("loads");
    assert_eq!(loaded.report().tokenizer, Engine::Plain);
    assert!(loaded.report().tokenizer_reason.contains("fastokens"), "{}", loaded.report().tokenizer_reason);
    let request = parse(Endpoint::Completions, &json!({"model": "m", "prompt": "hello there world"})).expect("a good body");
    let tokens = loaded.tokens(&request, UNIX_EPOCH, &Counters::default()).expect("token ids");
    assert_eq!(tokens[0].ids[..], [1, 0, 2]);
}

#[test]
fn a_folder_without_a_usable_tokenizer_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = Folder::load(folder.path(), &LoadOptions::default()).expect_err("nothing there");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("written");
    assert!(Folder::load(folder.path(), &LoadOptions::default()).is_err());
    std::fs::write(folder.path().join("tokenizer_config.json"), "{nope").expect("written");
    let error = Folder::load(folder.path(), &LoadOptions::default()).expect_err("bad JSON");
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
}

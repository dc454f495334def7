//! Hashes are the ones the rest of the fleet computes: every text vector, bit for bit.

use std::{collections::HashMap, fs, path::Path};

use index::{BlockSize, LocalHash, Seed, SequenceHash, Window, local_hashes, sequence_hashes};
use serde_json::Value;

fn vectors() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/hash-vectors.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

#[test]
fn text_namespaced_and_eagle_vectors_match_bit_for_bit() {
    let vectors = vectors();
    let lists: HashMap<&str, Vec<u32>> = vectors["token_lists"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, tokens)| (name.as_str(), tokens.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()))
        .collect();
    let (mut locals, mut sequences) = (Vec::new(), Vec::new());
    let mut checked = 0;
    for (section, cases) in [("text", 552), ("namespaced", 288), ("eagle", 276)] {
        let section = vectors[section].as_array().unwrap();
        assert_eq!(section.len(), cases);
        for case in section {
            let seed = Seed::new(case["lora_name"].as_str(), case["cache_namespace"].as_str());
            let window = if case["is_eagle"].as_bool().unwrap() { Window::Eagle } else { Window::Plain };
            let block_size = BlockSize::new(case["block_size"].as_u64().unwrap() as u32).unwrap();
            local_hashes(&lists[case["list"].as_str().unwrap()], block_size, seed, window, &mut locals);
            assert_eq!(locals.iter().map(|local| local.0).collect::<Vec<_>>(), numbers(&case["local"]), "{case}");
            sequence_hashes(&locals, &mut sequences);
            assert_eq!(sequences.iter().map(|sequence| sequence.0).collect::<Vec<_>>(), numbers(&case["sequence"]), "{case}");
            checked += locals.len();
        }
    }
    assert!(checked > 10_000, "only {checked} hashes in the vectors");
}

#[test]
fn seeds_match() {
    let vectors = vectors();
    for case in vectors["seeds"].as_array().unwrap() {
        let seed = Seed::new(case["lora_name"].as_str(), case["cache_namespace"].as_str());
        assert_eq!(seed.get(), number(&case["seed"]), "{case}");
    }
}

#[test]
fn chain_steps_match() {
    let vectors = vectors();
    for case in vectors["chain_step"].as_array().unwrap() {
        let next = SequenceHash::after(Some(SequenceHash(number(&case["parent"]))), LocalHash(number(&case["block"])));
        assert_eq!(next.0, number(&case["next"]), "{case}");
    }
}

#[test]
fn raw_bytes_match_through_one_block_of_tokens() {
    let vectors = vectors();
    let mut checked = 0;
    for case in vectors["raw_bytes"].as_array().unwrap() {
        let hex = case["bytes_hex"].as_str().unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        if bytes.is_empty() || !bytes.len().is_multiple_of(4) {
            continue;
        }
        let tokens: Vec<u32> = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let mut locals = Vec::new();
        local_hashes(&tokens, BlockSize::new(tokens.len() as u32).unwrap(), Seed::BASE, Window::Plain, &mut locals);
        assert_eq!(locals, [LocalHash(number(&case["xxh3_64_seed1337"]))], "{case}");
        checked += 1;
    }
    assert!(checked > 0);
}

#[test]
fn a_numbered_adapter_is_neither_the_base_model_nor_any_name() {
    let numbered = Seed::numbered(7, None);
    assert_ne!(numbered, Seed::BASE);
    assert_ne!(numbered, Seed::numbered(8, None));
    for name in ["7", "lora-7", "\u{7}\0\0\0\0\0\0\0"] {
        assert_ne!(numbered, Seed::new(Some(name), None), "{name:?}");
        assert_ne!(numbered, Seed::new(None, Some(name)), "{name:?}");
    }
    assert_ne!(numbered, Seed::numbered(7, Some("salt")));
    assert_eq!(numbered, Seed::numbered(7, Some("")));
}

//! However ids are cut into pushes, the text is what `tokenizers` makes of all of them at once.

use prompt::Endpoint;
use proptest::{collection::vec, prelude::*};

use crate::{
    harness::{answer, content, cut, prompt, shape, streamed},
    models::{BYTE_LEVEL, METASPACE, Model, SENTENCEPIECE, SPACE, WORDPIECE},
};

/// The text behind `prompt` as clients get it, cut in two ways, whole and streamed.
fn texts(model: &Model, before: &[u32], ids: &[u32], cuts: &[usize], skip: bool) -> [String; 3] {
    let asked = |stream| {
        let mut shape = shape(Endpoint::Completions, stream);
        shape.prompts = vec![prompt(before)];
        shape.skip_special_tokens = skip;
        shape
    };
    let whole = content(&answer(asked(false), &model.vocabulary, &cut(ids, &[ids.len()])), 0);
    let cut_up = content(&answer(asked(false), &model.vocabulary, &cut(ids, cuts)), 0);
    let streamed = streamed(&answer(asked(true), &model.vocabulary, &cut(ids, cuts)), 0);
    [whole, cut_up, streamed]
}

fn check(model: &Model, before: &[u32], ids: &[u32], cuts: &[usize], skip: bool) -> Result<(), TestCaseError> {
    let in_front = model.text(before, skip);
    let all = model.text(&[before, ids].concat(), skip);
    let expected = all.strip_prefix(&in_front).expect("a prompt that ends with a character");
    for text in texts(model, before, ids, cuts, skip) {
        prop_assert_eq!(&text, expected, "{:?} after {:?}", ids, before);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn byte_level(ids in vec(0..BYTE_LEVEL.size() + 3, 0..40), cuts in vec(1_usize..5, 1..5), skip: bool) {
        check(&BYTE_LEVEL, &[], &ids, &cuts, skip)?;
    }

    /// Bytes that make characters, and some that do not.
    #[test]
    fn byte_level_characters(text in "[a-z é日🙂]{0,12}", wrong in vec((0_usize..40, 0x80_u32..0x100), 0..3), cuts in vec(1_usize..5, 1..5)) {
        let mut ids: Vec<u32> = text.bytes().map(u32::from).collect();
        for (at, byte) in wrong {
            ids.insert(at.min(ids.len()), byte);
        }
        check(&BYTE_LEVEL, &[], &ids, &cuts, true)?;
    }

    #[test]
    fn sentencepiece(ids in vec(0..SENTENCEPIECE.size() + 3, 0..40), cuts in vec(1_usize..5, 1..5), skip: bool) {
        check(&SENTENCEPIECE, &[], &ids, &cuts, skip)?;
    }

    /// Words, spaces, and rows of byte tokens that make characters, behind a prompt or in front of all.
    #[test]
    fn sentencepiece_characters(
        before in vec(SPACE..SENTENCEPIECE.size(), 0..3),
        parts in vec(prop_oneof![
            vec(SPACE..SENTENCEPIECE.size() + 1, 1..3),
            "[ é日🙂]{1,3}".prop_map(|text| text.bytes().map(|byte| u32::from(byte) + 1).collect()),
            vec(1_u32..257, 1..3),
        ], 0..8),
        cuts in vec(1_usize..5, 1..5),
        skip: bool,
    ) {
        check(&SENTENCEPIECE, &before, &parts.concat(), &cuts, skip)?;
    }

    #[test]
    fn wordpiece(before in vec(0..WORDPIECE.size(), 0..9), ids in vec(0..WORDPIECE.size() + 2, 0..30), cuts in vec(1_usize..5, 1..5), skip: bool) {
        check(&WORDPIECE, &before, &ids, &cuts, skip)?;
    }

    #[test]
    fn metaspace(before in vec(0..METASPACE.size(), 0..9), ids in vec(0..METASPACE.size() + 2, 0..30), cuts in vec(1_usize..5, 1..5), skip: bool) {
        check(&METASPACE, &before, &ids, &cuts, skip)?;
    }
}

#[test]
fn the_models_are_of_the_kinds_they_are_to_be() {
    assert!(BYTE_LEVEL.vocabulary.is_bytewise(), "{:?}", BYTE_LEVEL.vocabulary);
    assert!(SENTENCEPIECE.vocabulary.is_bytewise(), "{:?}", SENTENCEPIECE.vocabulary);
    assert!(!WORDPIECE.vocabulary.is_bytewise());
    assert!(METASPACE.vocabulary.is_bytewise(), "{:?}", METASPACE.vocabulary);
}

/// A character goes out with the token that completes it, no sooner and no later.
#[test]
fn chunks_hold_whole_characters() {
    use crate::harness::{events, finished, tokens};
    let smile: Vec<u32> = "🙂é".bytes().map(u32::from).collect();
    let mut outputs: Vec<_> = smile.iter().map(|id| tokens(&[*id])).collect();
    outputs.push(finished(wire::generate::FinishReason::Stop));
    let stream = answer(shape(Endpoint::Completions, true), &BYTE_LEVEL.vocabulary, &outputs);
    let texts: Vec<String> = events(&stream).iter().map(|event| event["choices"][0]["text"].as_str().expect("text").to_owned()).collect();
    assert_eq!(texts, ["🙂", "é", ""]);
}

/// A model that writes characters in byte tokens without end is not waited for without end.
#[test]
fn a_long_row_of_byte_tokens_goes_on() {
    let ids: Vec<u32> = "日".repeat(400).bytes().map(|byte| u32::from(byte) + 1).collect();
    let mut answer = answer::Answer::new(shape(Endpoint::Completions, true), SENTENCEPIECE.vocabulary.clone());
    let mut out = bytes::BytesMut::new();
    for id in &ids {
        assert_eq!(answer.push(0, &crate::harness::tokens(&[*id]), &mut out), answer::Progress::Going);
    }
    let shown = crate::harness::text(&out).matches("日").count();
    assert!((300..=400).contains(&shown), "{shown}");
}

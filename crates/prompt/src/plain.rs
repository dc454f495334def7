//! Token ids out of JSON text, where an array has nothing but whole numbers in it, written plainly. Such an array is most of a
//! body that has one, so that what an id costs here is what a request costs: the bytes of a number are looked at together, and
//! memory is taken once. The text need not be valid.

use std::{num::NonZeroU64, sync::Arc};

use memchr::{memchr, memchr_iter};

/// Numbers that are read between two looks at how much text is left.
const RUN: usize = 4;
/// Most bytes of a number in a run, and of the comma and the blank behind it.
const NUMBER_BYTES: usize = 9;
const RUN_BYTES: usize = RUN * NUMBER_BYTES;

/// Reads an array of whole numbers that are written plainly and may be token ids, and leaves `*at` behind it. Nothing for any
/// other text, valid or not: then `*at` is where it was.
pub(crate) fn array(json: &[u8], at: &mut usize) -> Option<Arc<[u32]>> {
    let inner = json.get(*at..)?.strip_prefix(b"[")?;
    let blanks = blanks(inner);
    // Other arrays are known by their first byte.
    match inner.get(blanks)? {
        b'0'..=b'9' => {}
        b']' => {
            *at += blanks + 2;
            return Some(Arc::default());
        }
        _ => return None,
    }
    let end = memchr(b']', inner)?;
    let text = &inner[..end];
    let count = memchr_iter(b',', text).count() + 1;
    // Each takes a digit, and all but the last a comma: a body is made no more than twice as large.
    if count > text.len() / 2 + 1 {
        return None;
    }
    let spaced = memchr(b',', text).is_some_and(|comma| text.get(comma + 1) == Some(&b' '));
    let ids = if spaced { numbers::<2>(inner, count)? } else { numbers::<1>(inner, count)? };
    *at += end + 2;
    Some(ids)
}

/// So many numbers, most of which have a comma and `BEHIND - 1` blanks behind them, and the last of which a bracket.
fn numbers<const BEHIND: usize>(mut text: &[u8], count: usize) -> Option<Arc<[u32]>> {
    // Written in this way it is one fill of memory.
    let mut ids: Arc<[u32]> = (0..count).map(|_| 0).collect();
    let mut slots = Arc::get_mut(&mut ids)?;
    while !slots.is_empty() {
        (text, slots) = runs::<BEHIND>(text, slots);
        // The last ones, or something unusual.
        let (few, more) = slots.split_at_mut(slots.len().min(RUN));
        for slot in few {
            (*slot, text) = one(text)?;
        }
        slots = more;
    }
    Some(ids)
}

/// Whole runs of usual numbers, and what is left of the text and the room.
fn runs<'t, 's, const BEHIND: usize>(mut text: &'t [u8], mut slots: &'s mut [u32]) -> (&'t [u8], &'s mut [u32]) {
    while let (Some(piece), true) = (text.first_chunk(), slots.len() >= RUN) {
        let mut at = 0;
        let mut run = [0; RUN];
        for id in &mut run {
            let Some((value, bytes)) = usual::<BEHIND>(piece, at) else { return (text, slots) };
            *id = value;
            at += bytes;
        }
        let (first, more) = slots.split_at_mut(RUN);
        first.copy_from_slice(&run);
        (text, slots) = (&text[at..], more);
    }
    (text, slots)
}

/// A number of up to seven digits that does not begin with 0, with just what is expected behind it; and the bytes of both.
#[inline(always)]
fn usual<const BEHIND: usize>(piece: &[u8; RUN_BYTES], at: usize) -> Option<(u32, usize)> {
    /// Of eight bytes each.
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    /// Brings all but 0 to 9 to or over the high bit.
    const OVER_NINE: u64 = u64::from_ne_bytes([0x76; 8]);
    // The first byte is the lowest. Bytes behind the first that is no digit may be taken for anything.
    let text = u64::from_le_bytes(*piece[at..].first_chunk()?);
    let values = text ^ ZEROS;
    let others = NonZeroU64::new((values | values.wrapping_add(OVER_NINE)) & HIGH)?;
    let count = others.trailing_zeros() / 8;
    let behind = text >> (8 * count);
    let separated = if BEHIND == 2 { behind as u16 == u16::from_le_bytes(*b", ") } else { behind as u8 == b',' };
    let begins = (values as u8).wrapping_sub(1) < 9;
    // `begins` makes `count` at least 1.
    (separated && begins).then(|| (eight_digits((values << 8) << (56 - 8 * count)), count as usize + BEHIND))
}

/// The number of eight decimal digits, the first in the lowest byte: two, then four, then eight of them together. Each
/// factor adds what is in a place, times the base, to the place after it.
fn eight_digits(values: u64) -> u32 {
    let twos = (values.wrapping_mul((10 << 8) + 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos.wrapping_mul((100 << 16) + 1) >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul((10_000 << 32) + 1) >> 32) as u32
}

/// A number that may be a token id, whatever its length and whatever blanks are around it, the first digit of which is 0 only
/// where it is the only one; and the text behind its comma or bracket.
fn one(text: &[u8]) -> Option<(u32, &[u8])> {
    let text = &text[blanks(text)..];
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, behind) = text.split_at(digits);
    let leads_with_zero = number.len() > 1 && number[0] == b'0';
    if number.is_empty() || number.len() > 10 || leads_with_zero {
        return None;
    }
    let value = number.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
    match &behind[blanks(behind)..] {
        [b',' | b']', rest @ ..] => Some((u32::try_from(value).ok()?, rest)),
        _ => None,
    }
}

fn blanks(text: &[u8]) -> usize {
    text.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Vec<u32>> {
        let mut at = 0;
        let ids = array(text.as_bytes(), &mut at);
        assert_eq!(at, if ids.is_some() { text.find(']').map_or(0, |end| end + 1) } else { 0 }, "{text}");
        ids.map(|ids| ids.to_vec())
    }

    #[test]
    fn numbers_of_every_length_at_every_distance_from_the_end() {
        for digits in 1..=10 {
            for behind in ["", " ", "}", "        ", &"9, ".repeat(20)] {
                let number = &"4123456789"[..digits];
                let value: u32 = number.parse().unwrap();
                for separator in [",", ", ", " , ", ",\n  "] {
                    for count in 1..12 {
                        let text = format!("[{}]{behind}", vec![number; count].join(separator));
                        assert_eq!(read(&text), Some(vec![value; count]), "{text}");
                    }
                }
            }
        }
        assert_eq!(read("[ \n] "), Some(vec![]));
    }

    #[test]
    fn what_is_no_list_of_plain_ids() {
        let others = "[ [1 [1, [,1] [1,] [1,,2] [01] [00] [1.0] [1e2] [-1] [4294967296] [10000000000] [1;2] [/] [:] {} 1] [1,2} [1,\"]\"]";
        for other in others.split(' ').chain(["", "[1 2]", "[1, 2 3, 4]", "[1, [2]]"]) {
            for padded in [other.to_owned(), format!("{other}        "), format!("{other}, \"b\": [1, 2, 3, 4, 5, 6, 7, 8]}}")] {
                let unclosed = !other.contains(']') && padded.contains(']');
                assert!(unclosed || read(&padded).is_none(), "{padded}");
            }
        }
    }

    #[test]
    fn text_that_promises_more_than_it_holds() {
        assert_eq!(read(&format!("[1{}]", ",".repeat(1 << 20))), None);
        assert_eq!(read(&format!("[1{}", ",1".repeat(1 << 20))), None);
    }

    /// As a parser of JSON has it: whole numbers that are written as whole numbers are written.
    fn model(text: &[u8]) -> Option<Vec<u32>> {
        serde_json::from_slice(text).ok()
    }

    /// Each byte in the place of each.
    #[test]
    fn every_byte_at_every_place() {
        for separator in [",", ", "] {
            let good = format!("[{}]", ["7", "1999", "4567890", "30", "123456", "9", "42", "1000", "4294967295", "800"].join(separator));
            for place in 0..good.len() {
                for byte in 0..=u8::MAX {
                    let mut text = good.clone().into_bytes();
                    text[place] = byte;
                    let mut at = 0;
                    let taken = array(&text, &mut at).map(|ids| ids.to_vec());
                    let end = if taken.is_some() { at } else { text.len() };
                    assert_eq!(taken, model(&text[..end]).filter(|_| text[0] == b'['), "{}", text.escape_ascii());
                }
            }
        }
    }

    fn number() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => (0..200_000_u32).prop_map(|id| id.to_string()),
            2 => any::<u64>().prop_map(|bits| (bits >> (bits % 64)).to_string()),
            1 => "[0-9.eE-]{0,3}",
        ]
    }

    proptest! {
        #[test]
        fn as_a_parser_reads_them(
            ids in prop::collection::vec(prop_oneof![4 => 0..10_000_u32, 4 => 0..200_000_u32, 1 => any::<u32>()], 0..60),
            separator in "[ \n\t]{0,1},[ \n\r]{0,2}|, |,",
            behind in "[ -~é]{0,40}",
        ) {
            let text = format!("[{}]{behind}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(&separator));
            prop_assert_eq!(read(&text), Some(ids));
        }

        /// Whatever is put between the numbers, or in the place of one.
        #[test]
        fn nothing_that_a_parser_would_refuse(
            numbers in prop::collection::vec(number(), 0..24),
            separator in ", |,",
            odd in "[ ,0-9.é:/\\]\\[]{0,2}",
            place in any::<prop::sample::Index>(),
        ) {
            let mut text = format!("[{}]", numbers.join(&separator));
            text.insert_str(place.index(text.len()), &odd);
            let text = text.trim_start();
            let mut at = 0;
            let taken = array(text.as_bytes(), &mut at).map(|ids| ids.to_vec());
            prop_assert_eq!(taken.clone(), if taken.is_some() { model(&text.as_bytes()[..at]) } else { None });
            prop_assert!(taken.is_some() || model(text.as_bytes()).is_none(), "{}", text);
        }
    }
}

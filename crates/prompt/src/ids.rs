//! Token ids out of JSON text. A prompt of 100,000 ids is 600 KB; a visitor per number would cost more than all other
//! work of a request, so digits are read by hand. The text is known to be valid JSON.

/// Why an array is not a list of token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdError {
    Negative(usize),
    TooLarge(usize),
    NotAnInteger(usize),
}

/// Reads the array of token ids that starts at `*at` (a `[`) and leaves `*at` behind its `]`.
pub(crate) fn array(json: &[u8], at: &mut usize) -> Result<Vec<u32>, IdError> {
    // Most ids take five digits and a comma; a wrong guess costs a reallocation, and 0.8 bytes per byte of body at most.
    let mut ids = Vec::with_capacity((json.len() - *at) / 5);
    *at += 1;
    loop {
        skip_space(json, at);
        match json.get(*at) {
            Some(b']') => {
                *at += 1;
                return Ok(ids);
            }
            Some(b',') => *at += 1,
            Some(b'-') => ids.push(unusual(json, at, ids.len())?),
            Some(digit @ b'0'..=b'9') => {
                let start = *at;
                let mut value = u64::from(digit - b'0');
                *at += 1;
                while let Some(digit @ b'0'..=b'9') = json.get(*at) {
                    value = value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
                    *at += 1;
                }
                if matches!(json.get(*at), Some(b'.' | b'e' | b'E')) {
                    *at = start;
                    ids.push(unusual(json, at, ids.len())?);
                } else {
                    ids.push(u32::try_from(value).map_err(|_| IdError::TooLarge(ids.len()))?);
                }
            }
            _ => return Err(IdError::NotAnInteger(ids.len())),
        }
    }
}

/// Numbers written in another way: `3.0` and `3e2` are integers to engines, `-0` is 0.
fn unusual(json: &[u8], at: &mut usize, index: usize) -> Result<u32, IdError> {
    let start = *at;
    while matches!(json.get(*at), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
        *at += 1;
    }
    let number: f64 = std::str::from_utf8(&json[start..*at]).ok().and_then(|text| text.parse().ok()).ok_or(IdError::NotAnInteger(index))?;
    if number > f64::from(u32::MAX) {
        Err(IdError::TooLarge(index))
    } else if number < 0.0 {
        Err(IdError::Negative(index))
    } else if number.fract() != 0.0 {
        Err(IdError::NotAnInteger(index))
    } else {
        // Checked above: integral and within 0..=u32::MAX.
        Ok(number as u32)
    }
}

/// Reads an array of whole numbers that are written plainly and may be token ids, and leaves `*at` behind it. Nothing for any
/// other text, valid or not: then `*at` is anywhere.
pub(crate) fn plain(json: &[u8], at: &mut usize) -> Option<Vec<u32>> {
    /// Most room that is made ahead, in numbers.
    const ROOM: usize = 1024;
    if json.get(*at) != Some(&b'[') {
        return None;
    }
    *at += 1;
    skip_space(json, at);
    if json.get(*at) == Some(&b']') {
        *at += 1;
        return Some(Vec::new());
    }
    let mut ids = Vec::with_capacity(((json.len() - *at) / 5 + 1).min(ROOM));
    loop {
        ids.push(digits(json, at)?);
        skip_space(json, at);
        match json.get(*at)? {
            b',' => *at += 1,
            b']' => {
                *at += 1;
                return Some(ids);
            }
            _ => return None,
        }
        skip_space(json, at);
    }
}

/// A number of up to ten digits, the first of which is 0 only where it is the only one.
fn digits(json: &[u8], at: &mut usize) -> Option<u32> {
    /// Of eight bytes each.
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    /// Brings all but 0 to 9 to or over the high bit.
    const OVER_NINE: u64 = u64::from_ne_bytes([0x76; 8]);
    if let Some(eight) = json.get(*at..*at + 8).and_then(|eight| <[u8; 8]>::try_from(eight).ok()) {
        // The first byte is the lowest. Bytes behind the first that is no digit may be taken for anything.
        let values = u64::from_le_bytes(eight) ^ ZEROS;
        let count = ((values | values.wrapping_add(OVER_NINE)) & HIGH).trailing_zeros() / 8;
        if count == 0 || (count > 1 && values & 0xff == 0) {
            return None;
        }
        if count < 8 {
            *at += count as usize;
            return Some(eight_digits(values << (64 - 8 * count)));
        }
    }
    let start = *at;
    let mut value = 0_u64;
    while let Some(digit @ b'0'..=b'9') = json.get(*at).filter(|_| *at - start < 10) {
        value = value * 10 + u64::from(digit - b'0');
        *at += 1;
    }
    let leads_with_zero = *at - start > 1 && json[start] == b'0';
    if *at == start || leads_with_zero { None } else { u32::try_from(value).ok() }
}

/// The number of eight decimal digits, the first in the lowest byte: two, then four, then eight of them together.
fn eight_digits(values: u64) -> u32 {
    let twos = values.wrapping_mul(10).wrapping_add(values >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = twos.wrapping_mul(100).wrapping_add(twos >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff) as u32
}

pub(crate) fn skip_space(json: &[u8], at: &mut usize) {
    while matches!(json.get(*at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        *at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<u32>, IdError> {
        let mut at = 0;
        let ids = array(text.as_bytes(), &mut at)?;
        assert_eq!(at, text.len(), "stops behind the bracket");
        Ok(ids)
    }

    #[test]
    fn integers_in_any_spelling() {
        assert_eq!(read("[]"), Ok(vec![]));
        assert_eq!(read("[ 1 ,\n2,\t4294967295 ]"), Ok(vec![1, 2, u32::MAX]));
        assert_eq!(read("[3.0, 3e2, -0, 1E+1]"), Ok(vec![3, 300, 0, 10]));
    }

    #[test]
    fn numbers_of_every_length_at_every_distance_from_the_end() {
        for digits in 1..=10 {
            for behind in ["", " ", "}", "        "] {
                let number = &"4123456789"[..digits];
                let text = format!("[{number},{number} , 0]{behind}");
                let mut at = 0;
                let value: u32 = number.parse().unwrap();
                assert_eq!(plain(text.as_bytes(), &mut at), Some(vec![value, value, 0]), "{text}");
                assert_eq!(at, text.len() - behind.len());
            }
        }
        for other in [
            "",
            "[",
            "[1",
            "[1,",
            "[,1]",
            "[1,]",
            "[01]",
            "[00]",
            "[1.0]",
            "[1e2]",
            "[-1]",
            "[4294967296]",
            "[10000000000]",
            "[1 2]",
            "[/]",
            "[:]",
            "{}",
        ] {
            for padded in [other.to_owned(), format!("{other}        ")] {
                assert_eq!(plain(padded.as_bytes(), &mut 0), None, "{padded}");
            }
        }
    }

    #[test]
    fn the_index_of_what_is_wrong() {
        assert_eq!(read("[1,-1]"), Err(IdError::Negative(1)));
        assert_eq!(read("[4294967296]"), Err(IdError::TooLarge(0)));
        assert_eq!(read("[99999999999999999999999999]"), Err(IdError::TooLarge(0)));
        assert_eq!(read("[1e400]"), Err(IdError::TooLarge(0)));
        assert_eq!(read("[1,2,1.5]"), Err(IdError::NotAnInteger(2)));
        assert_eq!(read("[1,true]"), Err(IdError::NotAnInteger(1)));
        assert_eq!(read("[1,[2]]"), Err(IdError::NotAnInteger(1)));
    }
}

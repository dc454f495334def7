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

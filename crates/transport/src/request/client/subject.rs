//! The name of one expected connection: 122 random bits, written as a UUID of version 4 as 1.6.1 does.

use std::fmt;

use rand::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject(u128);

impl Subject {
    pub(super) fn random() -> Self {
        let bits: u128 = rand::rng().random();
        Self(bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62)
    }

    /// Exactly what [`Display`](fmt::Display) writes, and nothing else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let well_formed = bytes.len() == 36
            && bytes.iter().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => *byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            });
        if !well_formed {
            return None;
        }
        u128::from_str_radix(&text.replace('-', ""), 16).ok().map(Self)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0;
        let (a, b, c) = ((bits >> 96) as u32, (bits >> 80) as u16, (bits >> 64) as u16);
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", (bits >> 48) as u16, bits as u64 & 0xffff_ffff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_version_4_uuids_that_differ_and_read_back() {
        let (one, other) = (Subject::random(), Subject::random());
        assert_ne!(one, other);
        let text = one.to_string();
        assert_eq!(Subject::parse(&text), Some(one));
        assert_eq!(text.as_bytes()[14], b'4');
        assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
        for bad in
            ["", "4461dade-896e-4ca7-9f2c-333e8240550", "4461DADE-896e-4ca7-9f2c-333e82405507", "4461dade0896e-4ca7-9f2c-333e82405507"]
        {
            assert_eq!(Subject::parse(bad), None, "{bad}");
        }
    }
}

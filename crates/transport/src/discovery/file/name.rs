//! File names of keys: every byte but ASCII letters and digits as `%XX`, upper-case hex.

use std::fmt::Write;

pub(super) fn encode(rest: &str) -> String {
    let mut name = String::with_capacity(rest.len() * 3 / 2);
    for byte in rest.bytes() {
        if byte.is_ascii_alphanumeric() {
            name.push(byte.into());
        } else {
            // A string takes everything.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name
}

/// The key's rest; `None` for a name that [`encode`] does not make, so that no key has two files.
pub(super) fn decode(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [byte, more @ ..] = rest {
        rest = more;
        if *byte == b'%' {
            let [high, low, more @ ..] = rest else { return None };
            bytes.push(digit(*high)? << 4 | digit(*low)?);
            rest = more;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|rest| encode(rest) == name)
}

fn digit(hex: u8) -> Option<u8> {
    char::from(hex).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

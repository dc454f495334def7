//! The calls of one answer: their numbers and ids.

use crate::Delta;

/// Gives each call its number and id, and emits it.
#[derive(Debug)]
pub(crate) struct Calls {
    next: u32,
    ids: Ids,
}

/// How the ids of a family look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdStyle {
    /// `call_` and 24 hexadecimal digits.
    Call,
    /// Nine letters and digits: Mistral's template refuses others when the call comes back in a later turn.
    Nine,
}

impl Calls {
    /// Ids are drawn from `seed`.
    pub(crate) fn new(style: IdStyle, seed: u64) -> Self {
        Self { next: 0, ids: Ids { style, state: seed } }
    }

    /// A call begins.
    pub(crate) fn begin(&mut self, name: &str, id: Option<String>, out: &mut Vec<Delta>) {
        let index = self.next;
        self.next = self.next.saturating_add(1);
        let id = id.unwrap_or_else(|| self.ids.draw());
        out.push(Delta::ToolCall { index, id: Some(id), name: Some(name.to_owned()), arguments: String::new() });
    }

    /// More arguments of the call that began last.
    pub(crate) fn arguments(&mut self, text: &str, out: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        let current = self.next.saturating_sub(1);
        match out.last_mut() {
            Some(Delta::ToolCall { index, name: None, arguments, .. }) if *index == current => arguments.push_str(text),
            _ => out.push(Delta::ToolCall { index: current, id: None, name: None, arguments: text.to_owned() }),
        }
    }
}

#[derive(Debug)]
struct Ids {
    style: IdStyle,
    state: u64,
}

impl Ids {
    fn draw(&mut self) -> String {
        const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        match self.style {
            IdStyle::Call => {
                let (first, second) = (self.word(), self.word());
                format!("call_{first:016x}{:08x}", second >> 32)
            }
            IdStyle::Nine => {
                let mut word = self.word();
                let mut id = String::with_capacity(9);
                for _ in 0..9 {
                    id.push(char::from(ALPHABET[(word % 62) as usize]));
                    word /= 62;
                }
                id
            }
        }
    }

    /// SplitMix64: distinct and well mixed for every seed.
    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }
}

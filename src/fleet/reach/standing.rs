//! What every request asks of every worker of the request plane, readable without a lock. Whoever changes the state behind it,
//! [`TokenWorker`](super::TokenWorker), tells it here under that state's own lock.

use std::sync::atomic::{AtomicU8, Ordering};

use super::{Loaded, Text};

/// Its model is loaded, or it takes text.
const READY: u8 = 1;
const TEXT: u8 = 1 << 1;
/// What it answers where it takes text.
const CHAT: u8 = 1 << 2;
const COMPLETIONS: u8 = 1 << 3;
/// Its card cannot be served together with those of others.
const REFUSED: u8 = 1 << 4;
/// Discovery has no record of it.
const GONE: u8 = 1 << 5;

/// Bits of the above.
#[derive(Default)]
pub(super) struct Standing(AtomicU8);

impl Standing {
    /// What it answers, if it takes text.
    pub(super) fn text(&self) -> Option<Text> {
        let bits = self.bits();
        (bits & TEXT != 0).then_some(Text { chat: bits & CHAT != 0, completions: bits & COMPLETIONS != 0 })
    }

    /// Whether nothing but its health may keep requests from it.
    pub(super) fn is_ready(&self) -> bool {
        self.bits() & (READY | REFUSED) == READY
    }

    pub(super) fn is_gone(&self) -> bool {
        self.bits() & GONE != 0
    }

    pub(super) fn set_model(&self, model: &Loaded) {
        let mut bits = 0;
        match model {
            Loaded::Ready { .. } => bits = READY,
            Loaded::Text(text) => {
                bits = READY | TEXT;
                bits |= if text.chat { CHAT } else { 0 };
                bits |= if text.completions { COMPLETIONS } else { 0 };
            }
            Loaded::Loading | Loaded::Failed(_) | Loaded::Unsupported(_) => {}
        }
        self.replace(READY | TEXT | CHAT | COMPLETIONS, bits);
    }

    pub(super) fn set_refused(&self, refused: bool) {
        self.replace(REFUSED, if refused { REFUSED } else { 0 });
    }

    pub(super) fn set_gone(&self, gone: bool) {
        self.replace(GONE, if gone { GONE } else { 0 });
    }

    /// With what was stored before: who sees the bits sees the state they tell of.
    fn bits(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn replace(&self, those: u8, by: u8) {
        self.0.update(Ordering::Release, Ordering::Relaxed, |bits| bits & !those | by);
    }
}

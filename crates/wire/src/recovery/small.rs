//! Answers without events.

use super::{Answer, AnswerError};
use crate::cursor::Cursor;

/// Which one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Small {
    TreeDumpFailed,
    TooNew,
    InvalidRange,
    Error,
}

impl Small {
    /// By its name on the wire.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"TreeDumpFailed" => Some(Self::TreeDumpFailed),
            b"TooNew" => Some(Self::TooNew),
            b"InvalidRange" => Some(Self::InvalidRange),
            b"Error" => Some(Self::Error),
            _ => None,
        }
    }

    /// Reads its value.
    pub(super) fn read(self, cursor: &mut Cursor<'_>) -> Result<Answer, AnswerError> {
        let (item, content) = (cursor.item()?, AnswerError::Field("content"));
        if matches!(self, Self::Error) {
            return item.text().map(|message| Answer::Error(String::from_utf8_lossy(message).into_owned())).ok_or(content);
        }
        let pairs = item.pairs().ok_or(content)?;
        let (mut numbers, mut text): (Vec<(&[u8], u64)>, String) = (Vec::new(), String::new());
        for _ in 0..pairs {
            let key = cursor.key()?.unwrap_or_default();
            let value = cursor.item()?;
            cursor.skip_inside(value)?;
            if let Some(number) = value.unsigned().filter(|_| numbers.len() < 8) {
                numbers.push((key, number));
            }
            if let Some(message) = value.text().filter(|_| key == b"message") {
                text = String::from_utf8_lossy(message).into_owned();
            }
        }
        let number = |key: &'static str| {
            let found = numbers.iter().rev().find(|(name, _)| *name == key.as_bytes());
            found.map(|(_, number)| *number).ok_or(AnswerError::Field(key))
        };
        Ok(match self {
            Self::TreeDumpFailed => Answer::TreeDumpFailed { last_event_id: number("last_event_id")?, message: text },
            Self::TooNew => Answer::TooNew {
                requested_start: number("requested_start")?,
                requested_end: number("requested_end")?,
                newest_available: number("newest_available")?,
            },
            Self::InvalidRange => Answer::InvalidRange { start_id: number("start_id")?, end_id: number("end_id")? },
            Self::Error => return Err(AnswerError::Field("content")),
        })
    }
}

//! Reads what happened out of the HTTP client's errors.

use std::{error::Error as StdError, io};

use hyper_util::client::legacy::Error as ClientError;

use crate::error::Failure;

/// Names the failure of an exchange that brought no answer.
pub(crate) fn failure_of(error: &ClientError) -> Failure {
    let text = text_of(error);
    if error.is_connect() {
        return match find(error) {
            Cause::Tls => Failure::Tls(text),
            Cause::Refused => Failure::Refused,
            Cause::Exhausted => Failure::Exhausted(text),
            Cause::Parse | Cause::Other => Failure::Connect(text),
        };
    }
    match find(error) {
        Cause::Parse => Failure::Malformed(text),
        Cause::Tls => Failure::Tls(text),
        Cause::Exhausted => Failure::Exhausted(text),
        Cause::Refused | Cause::Other => Failure::Closed(text),
    }
}

/// An error and what caused it, in one line, each part once.
pub(crate) fn text_of(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let part = error.to_string();
        // The client's own level says only which step failed, and some levels repeat their cause.
        if !error.is::<ClientError>() && !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        next = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

/// `EMFILE` and `ENFILE` on Linux and the BSDs.
const OUT_OF_DESCRIPTORS: [i32; 2] = [24, 23];

enum Cause {
    Refused,
    /// This process or host has no file descriptor left.
    Exhausted,
    Tls,
    Parse,
    Other,
}

fn find(error: &(dyn StdError + 'static)) -> Cause {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<rustls::Error>() {
            return Cause::Tls;
        }
        if let Some(io) = error.downcast_ref::<io::Error>() {
            if io.kind() == io::ErrorKind::ConnectionRefused {
                return Cause::Refused;
            }
            if io.raw_os_error().is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code)) {
                return Cause::Exhausted;
            }
            // An I/O error's `source` skips the error it wraps.
            if let Some(inner) = io.get_ref() {
                match find(inner) {
                    Cause::Other => {}
                    found @ (Cause::Refused | Cause::Exhausted | Cause::Tls | Cause::Parse) => return found,
                }
            }
        }
        if let Some(hyper) = error.downcast_ref::<hyper::Error>()
            && hyper.is_parse()
        {
            return Cause::Parse;
        }
        next = error.source();
    }
    Cause::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_descriptors_is_told_from_a_refusal() {
        let found = |code: i32| find(&io::Error::from_raw_os_error(code));
        assert!(matches!(found(24), Cause::Exhausted));
        assert!(matches!(found(23), Cause::Exhausted));
        assert!(matches!(found(111), Cause::Refused));
    }
}

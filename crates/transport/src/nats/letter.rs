//! A message with headers and an address for its answer: sent within a bound, or known not to be. For requests, which are worth
//! something now or not at all.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::{Connection, Nats};

/// What is sent where.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) subject: Subject,
    /// Where answers go, and the server's word that nobody is there.
    pub(crate) reply: Subject,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// Why a letter was not sent.
#[derive(Clone, Debug)]
pub(crate) enum Unsent {
    /// There was no connection in time.
    Down(Arc<str>),
    /// The server takes messages of at most so many bytes, headers included.
    TooLarge(usize),
    /// The subject, a header, or the answer's address is none.
    Invalid(Arc<str>),
}

/// Headers of a letter; a name comes once. The error names what cannot be one.
pub(crate) fn headers<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Result<HeaderMap, Unsent> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let invalid = || Unsent::Invalid(format!("{name:?} and its value cannot be a header of NATS").into());
        let (known, value) = (HeaderName::from_str(name), HeaderValue::from_str(value));
        if name.is_empty() {
            return Err(invalid());
        }
        map.insert(known.map_err(|_| invalid())?, value.map_err(|_| invalid())?);
    }
    Ok(map)
}

impl Nats {
    /// Hands a letter to the connection, waiting for one at most so long. `Ok` is no delivery. Cancel-safe: a dropped call has
    /// sent nothing.
    pub(crate) async fn send(&self, letter: &Letter, within: Duration) -> Result<(), Unsent> {
        let until = Instant::now() + within;
        let mut link = self.link();
        let client = match timeout_at(until, link.up()).await {
            Ok((client, _)) => client,
            Err(_) => return Err(Unsent::Down(self.reason())),
        };
        let Letter { subject, reply, headers, payload } = letter.clone();
        match timeout_at(until, client.publish_with_reply_and_headers(subject, reply, headers, payload)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(match error.kind() {
                PublishErrorKind::MaxPayloadExceeded => Unsent::TooLarge(client.max_payload()),
                PublishErrorKind::InvalidSubject => Unsent::Invalid(format!("{:?} is no subject of NATS", letter.subject).into()),
                PublishErrorKind::Send => Unsent::Down("the connection was closed".into()),
            }),
            Err(_) => Err(Unsent::Down("the connection takes no messages".into())),
        }
    }

    fn reason(&self) -> Arc<str> {
        match &*self.shared.link.borrow() {
            Connection::Down { reason } => reason.clone(),
            Connection::Up { .. } => "the connection was made too late".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_line_is_no_header() {
        let map = headers([("request-id", "7"), ("traceparent", "00-1-2-3")].into_iter()).unwrap();
        assert_eq!(map.get("request-id").map(HeaderValue::as_str), Some("7"));
        for pair in [("request-id", "7\r\nPUB x 0"), ("a b", "7"), ("a:", "7"), ("", "7"), ("é", "7")] {
            let refused = headers([pair].into_iter());
            assert!(matches!(&refused, Err(Unsent::Invalid(_))), "{pair:?} {refused:?}");
        }
    }
}

//! The body of a streamed answer: its polls drive the legs. It ends in good order, or with one error event and a broken-off
//! body. Dropping it stops the workers.

use std::{io, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;

use super::answering::Answering;

/// How long the last bytes of a broken answer are given to leave before the body fails: a server drops what it has not
/// written then.
const LAST_BYTES_LEAVE: Duration = Duration::from_millis(100);

enum State {
    Flowing(Box<Answering>),
    /// The last bytes are out; then the body fails.
    Breaking,
    Over,
}

/// The body of `answering`, which has begun.
pub(super) fn of(mut answering: Answering) -> Body {
    answering.streams();
    Body::from_stream(stream::unfold(State::Flowing(Box::new(answering)), next))
}

async fn next(state: State) -> Option<(io::Result<Bytes>, State)> {
    let mut answering = match state {
        State::Flowing(answering) => answering,
        State::Breaking => {
            tokio::time::sleep(LAST_BYTES_LEAVE).await;
            return Some((Err(io::Error::other("the answer broke off")), State::Over));
        }
        State::Over => return None,
    };
    loop {
        if let Some(ready) = answering.ready() {
            return Some((Ok(ready), State::Flowing(answering)));
        }
        match answering.step().await {
            Ok(true) => {}
            Ok(false) => {
                let last = answering.end();
                return Some((Ok(last), State::Over));
            }
            Err(setback) => {
                let last = answering.break_off(&setback);
                return Some((Ok(last), State::Breaking));
            }
        }
    }
}

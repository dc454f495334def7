//! What can end the wait for the next tokens. One timer for the whole answer: it is moved when it fires, not at each token.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    future::{BoxFuture, FutureExt},
    stream::{FuturesUnordered, StreamExt},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{TokenOptions, Trouble};
use crate::pulse::Pulse;

/// A worker that has left discovery finishes what it runs; one that is silent for this long does not.
const RELEASED_AFTER: Duration = Duration::from_secs(5);

/// A worker that is silent for this long in the middle of a request is pinged ahead of its turn: it may be frozen.
const NUDGED_AFTER: Duration = Duration::from_secs(2);

/// How long the goodbye of a finished answer is waited for.
const GOODBYE: Duration = Duration::from_secs(1);

/// Watches over one answer.
pub(super) struct Watch {
    first: Duration,
    between: Duration,
    phase: Phase,
    /// The send, then the last sign of life.
    last: Instant,
    /// Since when discovery has the worker no longer.
    gone: Option<Instant>,
    /// Its probe was told of this silence.
    nudged: bool,
    /// What may still happen. All answers wait for the same few tokens, whose locks are taken where one is asked: so they are asked once,
    /// and again when they wake.
    signs: FuturesUnordered<BoxFuture<'static, Sign>>,
    timer: Pin<Box<Sleep>>,
    pulse: Pulse,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No token has come.
    Before,
    /// Tokens come.
    Between,
    /// The finish reason has come.
    Finished,
}

/// What happened elsewhere.
enum Sign {
    /// Discovery has the worker no longer.
    Gone,
    /// The worker died.
    Dead,
    /// We end ourselves.
    Stopping,
}

impl Watch {
    pub(super) fn new(options: &TokenOptions, pulse: &Pulse, gone: CancellationToken) -> Self {
        let signs = FuturesUnordered::new();
        for (token, sign) in [(options.stop.clone(), Sign::Stopping), (pulse.life(), Sign::Dead), (gone, Sign::Gone)] {
            signs.push(token.cancelled_owned().map(move |()| sign).boxed());
        }
        let last = Instant::now();
        Self {
            first: options.first_token,
            between: options.between_tokens,
            phase: Phase::Before,
            last,
            gone: None,
            nudged: false,
            signs,
            timer: Box::pin(sleep_until(last + options.first_token.min(NUDGED_AFTER))),
            pulse: pulse.clone(),
        }
    }

    /// Tokens came.
    pub(super) fn tokens(&mut self) {
        self.last = Instant::now();
        self.nudged = false;
        if self.phase == Phase::Before {
            self.phase = Phase::Between;
            // It may be far ahead of what counts from now on.
            self.timer.as_mut().reset(self.last + self.between.min(NUDGED_AFTER));
        }
        self.pulse.byte();
    }

    /// The answer is finished; only the goodbye is due.
    pub(super) fn finished(&mut self) {
        self.phase = Phase::Finished;
        self.last = Instant::now();
        self.timer.as_mut().reset(self.last + GOODBYE);
    }

    /// `work`, or what ended the wait for it. `work` may be dropped at any time.
    pub(super) async fn over<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Trouble> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll(context).map(Err),
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Trouble> {
        while let Poll::Ready(Some(sign)) = self.signs.poll_next_unpin(context) {
            match sign {
                Sign::Dead => return Poll::Ready(Trouble::Dead(self.pulse.status().reason)),
                Sign::Stopping => return Poll::Ready(Trouble::Stopping),
                Sign::Gone => {
                    self.gone = Some(Instant::now());
                    let deadline = self.deadline();
                    self.timer.as_mut().reset(deadline);
                }
            }
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let (now, deadline) = (Instant::now(), self.deadline());
            if now >= deadline {
                return Poll::Ready(self.trouble());
            }
            if !self.nudged && now >= self.last + NUDGED_AFTER {
                self.nudged = true;
                self.pulse.nudge();
            }
            let next = if self.nudged { deadline } else { deadline.min(self.last + NUDGED_AFTER) };
            self.timer.as_mut().reset(next);
        }
        Poll::Pending
    }

    fn patience(&self) -> Duration {
        match self.phase {
            Phase::Before => self.first,
            Phase::Between => self.between,
            Phase::Finished => GOODBYE,
        }
    }

    fn deadline(&self) -> Instant {
        let deadline = self.last + self.patience();
        match self.gone {
            None => deadline,
            Some(since) => deadline.min(self.last.max(since) + RELEASED_AFTER),
        }
    }

    fn trouble(&self) -> Trouble {
        if self.last + self.patience() > Instant::now() {
            return Trouble::Left(RELEASED_AFTER);
        }
        match self.phase {
            Phase::Before => Trouble::NoFirstToken(self.first),
            Phase::Between | Phase::Finished => Trouble::Stalled(self.between),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::health::Limits;

    fn options() -> TokenOptions {
        TokenOptions { first_token: Duration::from_secs(600), between_tokens: Duration::from_secs(60), stop: CancellationToken::new() }
    }

    fn watch(gone: &CancellationToken) -> Watch {
        Watch::new(&options(), &Pulse::new(Limits::default()), gone.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_token_is_awaited_longer_than_the_next() {
        let mut watch = watch(&CancellationToken::new());
        let began = Instant::now();
        assert!(matches!(watch.over(pending::<()>()).await, Err(Trouble::NoFirstToken(_))));
        assert_eq!(began.elapsed().as_secs(), 600);
        let mut watch = self::watch(&CancellationToken::new());
        watch.tokens();
        let began = Instant::now();
        for _ in 0..3 {
            watch.over(tokio::time::sleep(Duration::from_secs(59))).await.expect("no trouble");
            watch.tokens();
        }
        assert!(matches!(watch.over(pending::<()>()).await, Err(Trouble::Stalled(_))));
        assert_eq!(began.elapsed().as_secs(), 3 * 59 + 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_left_is_heard_until_it_is_silent_for_five_seconds() {
        let gone = CancellationToken::new();
        let mut watch = watch(&gone);
        watch.tokens();
        gone.cancel();
        let began = Instant::now();
        for _ in 0..5 {
            watch.over(tokio::time::sleep(Duration::from_secs(4))).await.expect("it finishes what it runs");
            watch.tokens();
        }
        assert!(matches!(watch.over(pending::<()>()).await, Err(Trouble::Left(_))));
        assert_eq!(began.elapsed().as_secs(), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_counts_from_the_leaving_not_from_the_last_token() {
        let gone = CancellationToken::new();
        let mut watch = watch(&gone);
        watch.over(tokio::time::sleep(Duration::from_secs(50))).await.expect("the prefill is long");
        gone.cancel();
        let began = Instant::now();
        assert!(matches!(watch.over(pending::<()>()).await, Err(Trouble::Left(_))));
        assert_eq!(began.elapsed().as_secs(), 5);
    }
}

//! The health table, one behaviour a test. Time is counted in milliseconds from the start.

use super::*;

struct Worker {
    start: Instant,
    health: Health,
    last_byte: Option<Instant>,
}

impl Worker {
    fn new() -> Self {
        let start = Instant::now();
        Self { start, health: Health::new(start, Limits::default()), last_byte: None }
    }

    fn up() -> Self {
        let mut worker = Self::new();
        worker.probe(0, Probed::Answered);
        assert_eq!(worker.state(), State::Up);
        worker
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn byte(&mut self, ms: u64) {
        self.last_byte = Some(self.at(ms));
    }

    /// A probe that ends at `ms`. One without an answer took 5 s.
    fn probe(&mut self, ms: u64, probed: Probed) -> State {
        let took = if matches!(probed, Probed::Silent(_)) { 5000 } else { 1 };
        let (now, started) = (self.at(ms), self.at(ms.saturating_sub(took)));
        self.health.probed(now, started, &probed, self.last_byte);
        self.state()
    }

    fn silent(&mut self, ms: u64) -> State {
        self.probe(ms, Probed::Silent("health gave no answer in 5 s".into()))
    }

    fn fail(&mut self, ms: u64, times: u32) -> State {
        for _ in 0..times {
            self.health.request_failed(self.at(ms), Fault::Answer, "answered 500");
        }
        self.state()
    }

    fn succeed(&mut self, ms: u64) -> State {
        self.health.request_succeeded(self.at(ms));
        self.state()
    }

    fn state(&self) -> State {
        self.health.status().state
    }

    fn next_probe_ms(&self) -> u64 {
        u64::try_from((self.health.next_probe() - self.start).as_millis()).expect("fits")
    }
}

const DEAD: State = State::Down(Down::Dead);
const FAILING: State = State::Down(Down::Failing);
const OPEN: State = State::Down(Down::BreakerOpen);

#[test]
fn a_new_worker_gets_requests_only_after_its_first_good_probe() {
    let mut worker = Worker::new();
    assert_eq!(worker.state(), State::Down(Down::Unproven));
    assert_eq!(worker.next_probe_ms(), 0);
    assert_eq!(worker.silent(5000), State::Down(Down::Unproven));
    assert_eq!(worker.probe(5600, Probed::Answered), State::Up);
}

#[test]
fn slow_health_is_not_death_while_bytes_come() {
    let mut worker = Worker::up();
    for ms in (6000..120_000).step_by(6000) {
        worker.byte(ms - 1000);
        assert_eq!(worker.silent(ms), State::Up, "at {ms} ms");
    }
    assert_eq!(worker.health.status().deaths, 0);
}

#[test]
fn slow_health_of_a_quiet_worker_makes_it_suspect_and_30_s_of_silence_dead() {
    let mut worker = Worker::up();
    assert_eq!(worker.silent(7000), State::Suspect);
    assert!(worker.state().is_routable());
    worker.byte(9000);
    assert_eq!(worker.silent(29_000), State::Suspect);
    assert_eq!(worker.silent(38_999), State::Suspect, "29.999 s after the last byte");
    assert_eq!(worker.silent(39_000), DEAD);
    assert!(worker.health.status().reason.contains("no byte for 30 s"), "{}", worker.health.status().reason);
    assert_eq!(worker.silent(50_000), DEAD);
    assert_eq!(worker.health.status().deaths, 1);
    assert_eq!(worker.health.status().since, worker.at(39_000));
    assert_eq!(worker.probe(60_000, Probed::Answered), State::Up);
}

#[test]
fn a_suspect_is_cleared_by_the_next_good_probe() {
    let mut worker = Worker::up();
    worker.silent(7000);
    assert_eq!(worker.probe(7600, Probed::Answered), State::Up);
}

#[test]
fn a_refusing_worker_gets_nothing_more_and_is_dead_when_it_is_quiet_too() {
    let mut worker = Worker::up();
    assert_eq!(worker.probe(1000, Probed::Refused), FAILING);
    assert_eq!(worker.probe(1999, Probed::Refused), FAILING);
    assert_eq!(worker.probe(2000, Probed::Refused), DEAD);
}

#[test]
fn a_draining_worker_that_closed_its_port_is_not_dead_while_it_streams() {
    let mut worker = Worker::up();
    for ms in (2000..40_000).step_by(1000) {
        worker.byte(ms - 100);
        assert_eq!(worker.probe(ms, Probed::Refused), FAILING);
    }
    assert_eq!(worker.probe(42_000, Probed::Refused), DEAD);
}

#[test]
fn an_unhealthy_worker_gets_nothing_at_once_and_dies_of_silence_only() {
    let mut worker = Worker::up();
    assert_eq!(worker.probe(1000, Probed::Unhealthy(503)), FAILING);
    assert!(worker.health.status().reason.contains("503"));
    worker.byte(20_000);
    assert_eq!(worker.probe(49_000, Probed::Unhealthy(503)), FAILING);
    assert_eq!(worker.probe(50_000, Probed::Unhealthy(503)), DEAD);
    assert_eq!(worker.probe(50_500, Probed::Unhealthy(503)), DEAD, "loading after its restart");
    assert_eq!(worker.probe(51_000, Probed::Answered), State::Up);
}

#[test]
fn the_breaker_opens_on_failures_in_a_row_only() {
    let mut worker = Worker::up();
    assert_eq!(worker.fail(100, 4), State::Up);
    assert_eq!(worker.succeed(110), State::Up);
    assert_eq!(worker.fail(120, 4), State::Up);
    assert_eq!(worker.fail(130, 1), OPEN);
    assert!(worker.health.status().reason.contains("answered 500"));
    assert_eq!(worker.health.status().breaker_opened, 1);
    assert_eq!(worker.next_probe_ms(), 630);
}

#[test]
fn our_probe_half_opens_the_breaker_and_a_request_closes_it() {
    let mut worker = Worker::up();
    worker.fail(0, 5);
    assert_eq!(worker.succeed(10), OPEN, "a request from before the breaker opened proves nothing new");
    assert_eq!(worker.probe(500, Probed::Answered), State::Suspect);
    assert_eq!(worker.succeed(600), State::Up);
    assert_eq!(worker.fail(700, 4), State::Up);
}

#[test]
fn a_half_open_breaker_opens_at_the_first_failure_and_waits_longer() {
    let mut worker = Worker::up();
    worker.fail(0, 5);
    let (mut now, mut waits) = (0, Vec::new());
    for _ in 0..7 {
        waits.push(worker.next_probe_ms() - now);
        now = worker.next_probe_ms();
        assert_eq!(worker.probe(now, Probed::Answered), State::Suspect);
        assert_eq!(worker.fail(now, 1), OPEN);
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(worker.health.status().breaker_opened, 8);
}

#[test]
fn a_half_open_breaker_without_requests_closes_by_itself() {
    let mut worker = Worker::up();
    worker.fail(0, 5);
    worker.probe(500, Probed::Answered);
    assert_eq!(worker.probe(10_499, Probed::Answered), State::Suspect);
    assert_eq!(worker.probe(10_500, Probed::Answered), State::Up);
    assert_eq!(worker.fail(10_600, 4), State::Up);
    assert_eq!(worker.fail(10_700, 1), OPEN);
    assert_eq!(worker.next_probe_ms(), 11_700, "the back-off is remembered until a request succeeds");
}

#[test]
fn a_broken_connection_asks_for_a_probe_at_once() {
    let mut worker = Worker::up();
    assert_eq!(worker.next_probe_ms(), 2000);
    worker.health.request_failed(worker.at(300), Fault::Connection, "connection refused");
    assert_eq!((worker.state(), worker.next_probe_ms()), (State::Up, 300));
}

#[test]
fn a_worker_that_is_down_is_probed_from_half_a_second_to_ten() {
    let mut worker = Worker::up();
    let (mut now, mut waits) = (3000, Vec::new());
    for _ in 0..7 {
        worker.probe(now, Probed::Refused);
        waits.push(worker.next_probe_ms() - now);
        now = worker.next_probe_ms();
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    worker.probe(now, Probed::Answered);
    assert_eq!(worker.next_probe_ms(), now + 2000);
    worker.probe(now + 2000, Probed::Refused);
    assert_eq!(worker.next_probe_ms(), now + 2500, "the back-off starts again");
}

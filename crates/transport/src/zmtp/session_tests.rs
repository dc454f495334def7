//! The state machine in virtual time: two sessions over a perfect pipe, and one against scripted peers.

use super::*;
use crate::zmtp::frame::put_command;

const T0_READY_SUB: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB";
const READY_PUB: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";

fn session(kind: Kind, now: Instant) -> Session {
    Session::new(kind, &Bytes::from_static(b"kv"), &Options::default(), now)
}

fn greeting_of(minor: u8) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    bytes[11] = minor;
    bytes
}

/// Everything `session` makes of `bytes`.
fn feed(session: &mut Session, bytes: &[u8]) -> Result<Vec<Event>, Error> {
    let mut input = BytesMut::from(bytes);
    let mut events = Vec::new();
    while let Some(event) = session.next(&mut input)? {
        events.push(event);
    }
    Ok(events)
}

fn open_sub(minor: u8, now: Instant) -> Session {
    let mut sub = session(Kind::Sub, now);
    let script = [&greeting_of(minor), READY_PUB].concat();
    assert_eq!(feed(&mut sub, &script).unwrap(), [Event::Open(Peer { minor, identity: Bytes::new() })]);
    sub
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn subscribe_commands_go_only_to_peers_that_greet_3_1() {
    let now = Instant::now();
    let output = open_sub(1, now).take_output();
    assert!(output.ends_with(b"\x04\x0c\x09SUBSCRIBEkv"), "{output:?}");
    let output = open_sub(0, now).take_output();
    assert!(output.ends_with(b"\x00\x03\x01kv"), "{output:?}");
    assert!(!contains(&output, b"SUBSCRIBE"));
}

#[test]
fn pings_go_only_to_peers_that_greet_3_1() {
    let now = Instant::now();
    let options = Options::default();
    let (idle, patience) = (options.heartbeat_idle, options.heartbeat_timeout);
    let mut sub = open_sub(0, now);
    sub.take_output();
    assert_eq!(sub.deadline(), None);
    sub.tick(now + idle * 100).unwrap();
    assert!(sub.take_output().is_empty());

    let mut sub = open_sub(1, now);
    sub.take_output();
    assert_eq!(sub.deadline(), Some(now + idle));
    sub.tick(now + idle - Duration::from_millis(1)).unwrap();
    assert!(sub.take_output().is_empty());
    sub.tick(now + idle).unwrap();
    assert_eq!(&sub.take_output()[..], b"\x04\x07\x04PING\x00\x00");
    assert_eq!(sub.deadline(), Some(now + idle + patience));
    // Any byte is a sign of life, a PONG among them.
    let answered = now + idle + Duration::from_secs(1);
    sub.heard(answered);
    assert_eq!(feed(&mut sub, b"\x04\x05\x04PONG").unwrap(), []);
    assert_eq!(sub.deadline(), Some(answered + idle));
    sub.tick(answered + idle).unwrap();
    assert!(matches!(sub.tick(answered + idle + patience), Err(Error::Silent(_))));
}

#[test]
fn a_ping_is_answered_with_its_context_and_its_time_to_live_is_obeyed() {
    let now = Instant::now();
    for minor in [0, 1] {
        let mut sub = open_sub(minor, now);
        sub.take_output();
        assert_eq!(feed(&mut sub, b"\x04\x0a\x04PING\x00\x1eabc").unwrap(), []);
        assert_eq!(&sub.take_output()[..], b"\x04\x08\x04PONGabc");
        sub.heard(now);
        assert_eq!(sub.deadline(), Some(now + Duration::from_secs(3)));
        assert!(matches!(sub.tick(now + Duration::from_secs(3)), Err(Error::Silent(_))));
    }
}

#[test]
fn unknown_commands_are_ignored_and_error_commands_end_with_their_reason() {
    let mut sub = open_sub(1, Instant::now());
    assert_eq!(feed(&mut sub, b"\x04\x07\x04NEWSab").unwrap(), []);
    let error = feed(&mut sub, b"\x04\x0c\x05ERROR\x05full!").unwrap_err();
    assert!(matches!(&error, Error::Refused(reason) if reason == "full!"), "{error}");
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let now = Instant::now();
    let limit = Options::default().handshake_timeout;
    for script in [&b""[..], &greeting()[..30], &greeting()] {
        let mut sub = session(Kind::Sub, now);
        feed(&mut sub, script).unwrap();
        // Bytes that trickle in do not extend it.
        sub.heard(now + limit / 2);
        assert_eq!(sub.deadline(), Some(now + limit));
        assert!(matches!(sub.tick(now + limit), Err(Error::TimedOut { .. })));
    }
}

#[test]
fn socket_kinds_that_do_not_talk_are_told_apart() {
    let mut sub = session(Kind::Sub, Instant::now());
    let error = feed(&mut sub, &[&greeting_of(1), T0_READY_SUB].concat()).unwrap_err();
    assert_eq!(error.to_string(), "peer is a \"SUB\" socket, which does not talk to a SUB socket");
}

#[test]
fn nothing_is_accepted_before_the_handshake_is_over() {
    let limits_after = |prefix: &[u8], rest: &[u8]| {
        let mut sub = session(Kind::Router, Instant::now());
        feed(&mut sub, &[prefix, rest].concat())
    };
    let hello = greeting_of(1);
    // A frame header of 1 MiB: allowed later, not from someone who has not said who it is.
    let error = limits_after(&hello, b"\x02\0\0\0\0\0\x10\0\0").unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 0, .. }), "{error}");
    assert!(limits_after(&hello, b"\x00\x00").is_err());
    assert!(limits_after(&hello, b"\x04\x07\x04PING\0\0").is_err());
    let twice = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ".repeat(2);
    assert!(limits_after(&hello, &twice).is_err());
}

#[test]
fn subscriptions_are_read_as_messages_of_3_0_and_as_commands_of_3_1() {
    let mut publisher = session(Kind::Pub, Instant::now());
    let mut script = [&greeting_of(1), T0_READY_SUB, b"\x00\x03\x01ab", b"\x00\x02\x00a"].concat();
    let mut commands = BytesMut::new();
    put_command(&mut commands, b"\x09SUBSCRIBEcd");
    put_command(&mut commands, b"\x06CANCELc");
    script.extend_from_slice(&commands);
    script.extend_from_slice(b"\x00\x00\x00\x01\x07\x01\x01\x01\x00\x00");
    let events = feed(&mut publisher, &script).unwrap();
    assert_eq!(
        events[1..],
        [
            Event::Subscribe(Bytes::from_static(b"ab")),
            Event::Cancel(Bytes::from_static(b"a")),
            Event::Subscribe(Bytes::from_static(b"cd")),
            Event::Cancel(Bytes::from_static(b"c")),
        ],
        "and messages that are no subscription are nothing"
    );
}

#[test]
fn a_slow_peer_is_not_taken_for_a_silent_one() {
    let now = Instant::now();
    let mut sub = open_sub(1, now);
    sub.take_output();
    let late = now + Options::default().heartbeat_idle * 3;
    sub.postpone(late).unwrap();
    assert!(sub.take_output().is_empty());
    assert!(sub.deadline().unwrap() > late);
}

#[test]
fn any_bytes_after_any_part_of_a_handshake_end_in_events_or_an_error() {
    bolero::check!().with_type::<(u8, u8, Vec<u8>)>().for_each(|(kind, known, bytes)| {
        let kind = [Kind::Sub, Kind::Pub, Kind::Dealer, Kind::Router][usize::from(*kind) % 4];
        let theirs = ["PUB", "SUB", "ROUTER", "REQ"][kind as usize];
        let mut hello = BytesMut::from(&greeting()[..]);
        command::put_ready(&mut hello, theirs, b"");
        let known = usize::from(*known) % (hello.len() + 1);
        let mut session = session(kind, Instant::now());
        let script = [&hello[..known], bytes].concat();
        let _ = feed(&mut session, &script);
        // What we answer is never much more than what we were sent.
        assert!(session.take_output().len() <= 256 + 2 * script.len());
    });
}

#[test]
fn every_pair_of_kinds_that_talk_opens_over_a_pipe_cut_anywhere() {
    for (ours, theirs) in [(Kind::Sub, Kind::Pub), (Kind::Dealer, Kind::Router), (Kind::Dealer, Kind::Dealer)] {
        for cut in 1..200 {
            let now = Instant::now();
            let (mut a, mut b) = (session(ours, now), session(theirs, now));
            let (mut to_a, mut to_b) = (BytesMut::new(), BytesMut::new());
            let (mut wire_a, mut wire_b) = (BytesMut::new(), BytesMut::new());
            while !(a.is_open() && b.is_open()) {
                wire_a.extend_from_slice(&b.take_output());
                wire_b.extend_from_slice(&a.take_output());
                assert!(!(wire_a.is_empty() && wire_b.is_empty()), "both wait");
                to_a.extend_from_slice(&wire_a.split_to(cut.min(wire_a.len())));
                to_b.extend_from_slice(&wire_b.split_to(cut.min(wire_b.len())));
                while a.next(&mut to_a).unwrap().is_some() {}
                while b.next(&mut to_b).unwrap().is_some() {}
            }
        }
    }
}

#[test]
fn a_subscription_that_is_to_be_confirmed_opens_with_the_second_answer_behind_it() {
    let now = Instant::now();
    let options = Options { confirm_subscription: true, ..Options::default() };
    let open = |minor| Event::Open(Peer { minor, identity: Bytes::new() });
    let sub = |minor| {
        let mut sub = Session::new(Kind::Sub, &Bytes::from_static(b"kv"), &options, now);
        let events = feed(&mut sub, &[&greeting_of(minor), READY_PUB].concat()).unwrap();
        (sub, events)
    };
    let (_, events) = sub(0);
    assert_eq!(events, [open(0)], "ZMTP 3.0 has no PING");

    let (mut answered, events) = sub(1);
    assert!(events.is_empty());
    assert!(answered.take_output().ends_with(b"\x04\x0c\x09SUBSCRIBEkv\x04\x07\x04PING\x00\x00"));
    assert!(feed(&mut answered, b"\x04\x05\x04PONG").unwrap().is_empty());
    assert_eq!(answered.take_output(), &b"\x04\x07\x04PING\x00\x00"[..]);
    assert_eq!(feed(&mut answered, b"\x04\x05\x04PONG\x04\x05\x04PONG").unwrap(), [open(1)]);

    let (mut silent, _) = sub(1);
    let late = now + options.handshake_timeout;
    assert_eq!(silent.deadline(), Some(late));
    silent.tick(late).unwrap();
    assert_eq!(feed(&mut silent, b"").unwrap(), [open(1)]);
    assert!(silent.deadline() > Some(late));
}

//! The scanner against a naive reader, over hand-made, captured and random streams in every kind of cut.

use super::*;

/// What a scanner says at the end of some bytes.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    events: u64,
    done: bool,
    finished: bool,
    failed: bool,
    open: Open,
    usage: Option<Usage>,
}

fn seen<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut scanner = Scanner::new();
    for piece in pieces {
        scanner.feed(piece);
    }
    Seen {
        events: scanner.events(),
        done: scanner.is_done(),
        finished: scanner.is_finished(),
        failed: scanner.has_failed(),
        open: scanner.open(),
        usage: scanner.usage(),
    }
}

/// Splits the bytes into pieces whose lengths are given in turn; a length of 0 counts as 1.
fn cut<'a>(bytes: &'a [u8], lengths: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(usize::from(*length).max(1).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Counts events the slow way: whole text, lines, then groups of lines.
fn naive_events(text: &str) -> u64 {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let closed = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    let (mut events, mut data, mut only_done) = (0, false, true);
    for line in closed.lines() {
        if line.is_empty() {
            events += u64::from(data && !only_done);
            (data, only_done) = (false, true);
        } else if line == "data" || line.starts_with("data:") {
            data = true;
            only_done &= line.strip_prefix("data:").is_some_and(|value| value.trim() == "[DONE]");
        }
    }
    events
}

#[test]
fn line_ends_of_all_three_kinds_end_events() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("data: a{end}{end}: ping{end}{end}event: x{end}data: b{end}data: c{end}{end}data: [DONE]{end}{end}");
        let all = seen([text.as_bytes()]);
        assert_eq!((all.events, all.done, all.open), (2, true, Open::Nothing), "{end:?}");
        assert_eq!(seen(text.as_bytes().chunks(1)), all, "{end:?}");
    }
}

#[test]
fn what_stands_open_is_told_so_that_it_can_be_closed() {
    for (text, open, closing) in [
        ("", Open::Nothing, ""),
        ("data: a\n\n", Open::Nothing, ""),
        (": ping\n", Open::Nothing, ""),
        ("data: a\n", Open::Event, "\n"),
        ("data: a\r", Open::Event, "\n\n"),
        ("data: a\r\n", Open::Event, "\n"),
        ("data: {\"cho", Open::Line, "\n\n"),
        ("data: a\nd", Open::Line, "\n\n"),
        (": pi", Open::Line, "\n\n"),
    ] {
        let mut scanner = Scanner::new();
        scanner.feed(text.as_bytes());
        assert_eq!((scanner.open(), scanner.closing()), (open, closing), "{text:?}");
        let before = scanner.events();
        let open_data = text.contains("data:") && open != Open::Nothing;
        scanner.feed(closing.as_bytes());
        assert_eq!(scanner.open(), Open::Nothing, "{text:?}");
        assert_eq!(scanner.events(), before + u64::from(open_data), "{text:?}: one event at most is closed");
    }
}

#[test]
fn an_end_is_done_or_a_finish_reason_and_never_text() {
    let finished = |text: &str| seen([text.as_bytes()]).finished;
    assert!(finished("data: [DONE]\n"));
    assert!(finished("data: {\"choices\":[{\"finish_reason\": \"stop\"}]}\n\n"));
    assert!(finished("event: message_stop\ndata: {}\n\n"));
    assert!(!finished("data: {\"choices\":[{\"finish_reason\":null}]}\n\n"));
    assert!(!finished("data: {\"text\":\"[DONE] \\\"finish_reason\\\":\\\"stop\\\"\"}\n\n"));
    assert!(!finished("data: [DONE]"), "the line may go on");
}

#[test]
fn an_engines_error_inside_the_stream_is_seen() {
    let failed = |text: &str| seen([text.as_bytes()]).failed;
    assert!(failed("data: {\"error\": {\"message\": \"EngineCore died\", \"code\": 500}}\n\ndata: [DONE]\n\n"));
    assert!(failed("data:{ \"error\" :\"x\"}\n\n"));
    assert!(failed("event: error\ndata: x\n\n"));
    assert!(!failed("data: {\"error\": null, \"choices\": []}\n\n"));
    assert!(!failed("data: {\"text\":\"{\\\"error\\\": 1}\"}\n\n"));
}

#[test]
fn the_first_event_is_an_error_wherever_its_key_stands() {
    let held = b": hello\n\ndata: {\"id\":1,\"error\":{\"message\":\"no\",\"code\":503}}\n\ndata: [DONE]\n\n";
    assert_eq!(first_error(held), Some((Some(503), "{\"id\":1,\"error\":{\"message\":\"no\",\"code\":503}}")));
    assert_eq!(first_error(b"data: {\"error\":\"no\"}\n\n").map(|(code, _)| code), Some(None));
    assert_eq!(first_error(b"data: {\"error\":null}\n\ndata: {\"error\":\"second\"}\n\n"), None);
    assert_eq!(first_error(b"data: {\"choices\":[]}\n\n"), None);
    assert_eq!(first_error(b"\xff\xfe"), None);
}

#[test]
fn a_captured_stream_gives_its_tokens_and_usage() {
    let text = include_str!("../../tests/data/chat-stream.txt");
    let all = seen([text.as_bytes()]);
    let chunks = text.matches("\"object\":\"chat.completion.chunk\"").count();
    assert_eq!(all.events, chunks as u64);
    assert!(all.done && !all.failed);
    assert_eq!(all.usage, Some(Usage { prompt_tokens: 161, completion_tokens: 24, cached_tokens: Some(96) }));
    for length in [1, 7, 13, 64, 255] {
        assert_eq!(seen(cut(text.as_bytes(), &[length])), all, "pieces of {length} bytes");
    }
}

/// A stream put together from pieces that mean something, so that random input reaches every state.
fn compose(choices: &[u8]) -> String {
    const PARTS: [&str; 16] = [
        "data: ",
        "data:",
        "event: message_stop",
        "event: error",
        ": ping",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "[DONE]",
        "{\"error\": {\"code\":500}}",
        "\"finish_reason\": \"stop\"",
        "\"finish_reason\":null",
        "\"usage\": {\"prompt_tokens\": 9, \"prompt_tokens_details\": {\"cached_tokens\": 8}}",
        "\"usage",
        "some text that is longer than the start of a line that is kept \"\\\"",
    ];
    choices.iter().map(|choice| PARTS[usize::from(*choice) % PARTS.len()]).collect()
}

#[test]
fn any_cut_gives_the_same_events_and_usage() {
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(choices, lengths)| {
        let text = compose(choices);
        let whole = seen([text.as_bytes()]);
        assert_eq!(whole.events, naive_events(&text), "{text:?}");
        let lengths = if lengths.is_empty() { &[1][..] } else { lengths };
        assert_eq!(seen(cut(text.as_bytes(), lengths)), whole, "{text:?}");
    });
}

#[test]
fn arbitrary_bytes_are_read_the_same_in_any_cut() {
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(bytes, lengths)| {
        let lengths = if lengths.is_empty() { &[1][..] } else { lengths };
        assert_eq!(seen(cut(bytes, lengths)), seen([&bytes[..]]));
        let _ = first_error(bytes);
    });
}

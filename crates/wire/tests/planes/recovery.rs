//! Recorded recovery queries and their answers.

use serde_json::{Value, json};
use testkit::dynamo;
use wire::{
    recovery::{Answer, DumpReader, Item, Listing, Part, Query, QueryError, Tail},
    request::{Codec, RequestFrame, TwoPart},
    router::RouterEvent,
};

use crate::{
    json as parse,
    responses::{Whole, data_of},
};

/// An answer as 1.6.1's JSON would have it.
pub(crate) fn noted(answer: &Answer) -> Value {
    let list = |events: &[RouterEvent]| events.iter().map(|event| parse(&event.to_json())).collect::<Vec<_>>();
    match answer {
        Answer::Events { events, last_event_id } => {
            json!({"Events": {"events": list(events), "last_event_id": last_event_id}})
        }
        Answer::TreeDump { events, last_event_id, reset_scope } => {
            json!({"TreeDump": {"events": list(events), "last_event_id": last_event_id, "reset_scope": reset_scope}})
        }
        Answer::TreeDumpFailed { last_event_id, message } => {
            json!({"TreeDumpFailed": {"last_event_id": last_event_id, "message": message}})
        }
        Answer::TooNew { requested_start, requested_end, newest_available } => json!({"TooNew": {
            "requested_start": requested_start, "requested_end": requested_end, "newest_available": newest_available,
        }}),
        Answer::InvalidRange { start_id, end_id } => json!({"InvalidRange": {"start_id": start_id, "end_id": end_id}}),
        Answer::Error(message) => json!({ "Error": message }),
        Answer::Unknown(name) => json!(name),
    }
}

/// The query of a recorded exchange, and the one answer it got.
fn exchange(name: &str) -> (Result<Query, QueryError>, Vec<u8>, Option<Answer>) {
    let lines = dynamo::exchange(name);
    let frame = lines.iter().find(|(kind, _)| kind == "request").unwrap();
    let frame = RequestFrame::take(&mut frame.1[..].into(), 1 << 20).unwrap().unwrap();
    let body = TwoPart::decode(&frame.payload).unwrap().body;
    let query = Query::decode(&body);
    if let Ok(query) = query {
        // Byte for byte, save that in these two keys are left out that have their default: the kind, and what the asker supports.
        if !["worker_query_nokind", "worker_query_wrong_worker"].contains(&name) {
            assert_eq!(query.encode(), body, "{name}");
        }
    }
    let stream: Vec<u8> = lines.iter().filter(|(kind, _)| kind == "hs" || kind == "f").flat_map(|line| line.1.clone()).collect();
    if stream.is_empty() {
        return (query, Vec::new(), None);
    }
    let data = data_of(&stream, Codec::Msgpack);
    let Whole::Items(items) = data else { panic!("{name}: {data:?}") };
    assert_eq!(items.len(), 1, "{name}");
    let (item, odd) = Item::decode(&items[0]).unwrap();
    assert_eq!((item.page, item.last, odd), (0, true, 0), "{name}");
    assert_eq!(item.encode(), items[0], "{name}: written again");
    (query, items[0].to_vec(), Some(item.answer))
}

#[test]
fn every_recorded_query_gets_the_answer_its_name_says() {
    const WORKER: u64 = 2445869777105934068;
    let everything = Query::everything(WORKER, 0);
    let from = |start: u64, end: Option<u64>| Query { start_event_id: Some(start), end_event_id: end, ..everything };
    let dump = |answer: &Answer| matches!(answer, Answer::TreeDump { events, last_event_id: 4, reset_scope } if events.len() == 4 && reset_scope == "all");
    let events = |answer: &Answer, first: u64| match answer {
        Answer::Events { events, last_event_id: 4 } => events.iter().map(|event| event.event.event_id).eq(first..=4),
        _ => false,
    };

    let (query, _, answer) = exchange("worker_query_recovery_all");
    assert_eq!(query, Ok(everything));
    assert!(dump(&answer.unwrap()));
    let (query, _, answer) = exchange("worker_query_from_0");
    assert_eq!(query, Ok(from(0, None)));
    assert!(dump(&answer.unwrap()));
    let (query, _, answer) = exchange("worker_query_nokind");
    assert_eq!(query.unwrap().worker_id, WORKER);
    assert!(dump(&answer.unwrap()));
    let (query, _, answer) = exchange("worker_query_range_1_3");
    assert_eq!(query, Ok(from(1, Some(3))));
    assert!(events(&answer.unwrap(), 1), "the end does not cap");
    let (query, _, answer) = exchange("worker_query_range_2_open");
    assert_eq!(query, Ok(from(2, None)));
    assert!(events(&answer.unwrap(), 2));
    let (query, _, answer) = exchange("worker_query_toonew");
    assert_eq!(query, Ok(from(100_000, None)));
    let too_new = Answer::TooNew { requested_start: 100_000, requested_end: 4, newest_available: 4 };
    assert_eq!(answer, Some(too_new));
    let (query, _, answer) = exchange("worker_query_inverted");
    assert_eq!(query, Ok(from(5, Some(2))));
    assert_eq!(answer, Some(Answer::InvalidRange { start_id: 5, end_id: 2 }));
    let (query, _, answer) = exchange("worker_query_wrong_worker");
    assert_eq!(query.unwrap().worker_id, 5);
    assert!(matches!(answer, Some(Answer::Error(message)) if message.contains("mismatch")));
    // Acknowledged and never answered by 1.6.1: no query that it reads.
    let (query, _, answer) = exchange("worker_query_empty");
    assert!(query.is_err());
    assert_eq!(answer, None);
    let (query, _, answer) = exchange("worker_query_kind_live");
    assert_eq!(query, Err(QueryError::Kind));
    assert_eq!(answer, None);
    assert_eq!(dynamo::names(".txt").iter().filter(|name| name.starts_with("worker_query_")).count(), 10);
}

/// The parts that a reader gives of bytes cut in pieces of so many.
fn parts(data: &[u8], piece: usize) -> Vec<Part> {
    let mut reader = DumpReader::new();
    let mut parts = Vec::new();
    for piece in data.chunks(piece) {
        parts.extend(reader.push(piece).map(Result::unwrap));
    }
    assert!(reader.is_done());
    assert_eq!(reader.buffered_bytes(), 0);
    parts
}

#[test]
fn an_answer_in_pieces_is_the_answer_in_one() {
    for name in dynamo::names(".txt").iter().filter(|name| name.starts_with("worker_query_")) {
        let (_, data, answer) = exchange(name);
        if answer.is_none() {
            continue;
        }
        let whole = parts(&data, data.len());
        for piece in [1, 2, 3, 7, 64, 1000] {
            assert_eq!(parts(&data, piece), whole, "{name} in pieces of {piece}");
        }
    }
}

#[test]
fn pages_carry_their_number_and_whether_more_follow() {
    let answer = Answer::TreeDump { events: Vec::new(), last_event_id: 9, reset_scope: "all".to_owned() };
    for (page, last, lacking) in [(0, false, true), (1, false, false), (2, true, true), (0, true, false), (0, true, true)] {
        let item = Item { answer: answer.clone(), page, last, lacking };
        assert_eq!(Item::decode(&item.encode()).unwrap(), (item.clone(), 0));
        let tail = Tail { listing: Listing::TreeDump, last_event_id: 9, reset_scope: "all".to_owned(), page, last, lacking };
        assert_eq!(parts(&item.encode(), 1), [Part::Begin(Listing::TreeDump), Part::End(tail)]);
    }
    let unpaged = Item::from(answer).encode();
    assert!(!unpaged.windows(5).any(|bytes| bytes == b"\xa4page"), "what 1.6.1 gets is what it knows");
    let asked = Query { pages: true, ..Query::everything(1, 2) };
    assert_eq!(Query::decode(&asked.encode()), Ok(asked));
    assert_eq!(Query { pages: false, ..asked }.encode().len() + 7, asked.encode().len());
}

#[test]
fn an_odd_event_of_a_dump_is_left_out_and_told() {
    let mut data = b"\x81\xa8TreeDump\x83\xa6events\x93\x07".to_vec();
    data.extend(b"\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x05\xa4data\xa7cleared");
    data.extend(b"\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x06\xa4data\xa8exploded");
    data.extend(b"\xadlast_event_id\x06\xabreset_scope\xa3all");
    let (item, odd) = Item::decode(&data).unwrap();
    assert_eq!(odd, 2);
    assert!(matches!(item.answer, Answer::TreeDump { events, last_event_id: 6, .. } if events.len() == 1));
}

#[test]
fn what_1_6_1_may_answer_beside_is_told_by_name() {
    for (data, name) in
        [(&b"\x81\xa6Status\x81\xa1x\x01"[..], "Status"), (b"\xa4Gone", "Gone"), (b"\x81\xb2StateAgentRecovery\xc0", "StateAgentRecovery")]
    {
        assert_eq!(Item::decode(data).unwrap().0.answer, Answer::Unknown(name.to_owned()));
    }
    assert!(Item::decode(b"\x07").is_err());
    assert!(Item::decode(b"\x81\xa8TreeDump\x81\xa6events\x90").is_err(), "without the newest event it is of no use");
    assert!(Item::decode(b"\x81\xa8TreeDump\x82\xa6events\x90").is_err(), "cut short");
}

//! An answer read while it arrives: in bytes of any cut, out events one by one.
//!
//! What is kept is at most one value that has not arrived whole, however long the answer is.

use super::{Answer, AnswerError, Item, Listing, MAX_ANSWER_BYTES, MAX_VALUE_BYTES, Part, Tail, small::Small};
use crate::{
    cursor::{Cursor, Item as Value},
    router,
    scan::{Container, Scan, Token, token},
};

/// Reads one item's data.
#[derive(Debug)]
pub struct DumpReader {
    /// Bytes not used yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// How far the value at `start` has been followed.
    scan: Scan,
    scanned: usize,
    received: u64,
    state: State,
    tail: Pending,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The answer itself.
    Answer,
    /// Its name.
    Name,
    /// The map of its fields.
    Fields(Listing),
    /// The key of the next of so many fields.
    Key(Listing, u64),
    /// The list of events, with so many fields behind it.
    List(Listing, u64),
    /// So many events, and fields behind them.
    Events(Listing, u64, u64),
    /// The value of a small field, with so many fields behind it.
    Value(Listing, Field, u64),
    /// The value of an answer without events.
    Other(Small),
    Done,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    LastEventId,
    ResetScope,
    Page,
    Last,
    Lacking,
    Unknown,
}

#[derive(Debug, Default)]
struct Pending {
    last_event_id: Option<u64>,
    reset_scope: Option<String>,
    page: Option<u64>,
    last: Option<bool>,
    lacking: bool,
}

impl Default for DumpReader {
    fn default() -> Self {
        Self::new()
    }
}

impl DumpReader {
    /// At the beginning of an item's data.
    pub fn new() -> Self {
        Self { buffer: Vec::new(), start: 0, scan: Scan::one(), scanned: 0, received: 0, state: State::Answer, tail: Pending::default() }
    }

    /// Takes the next bytes, of any length, and gives what they complete. After an error there is nothing more to read. Parts that are
    /// not fetched are kept, with their bytes, until the next push.
    pub fn push(&mut self, bytes: &[u8]) -> impl Iterator<Item = Result<Part, AnswerError>> + '_ {
        self.received += bytes.len() as u64;
        self.buffer.drain(..self.start);
        self.start = 0;
        if !matches!(self.state, State::Done) {
            self.buffer.extend_from_slice(bytes);
        }
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let part = self.next().transpose();
            if matches!(part, Some(Err(_))) {
                failed = true;
                self.state = State::Done;
                self.buffer = Vec::new();
                self.start = 0;
            }
            part
        })
    }

    /// Whether the answer has been read to its end.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Bytes kept for a value that has not arrived whole.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }

    fn next(&mut self) -> Result<Option<Part>, AnswerError> {
        if self.received > MAX_ANSWER_BYTES {
            return Err(AnswerError::TooLong);
        }
        loop {
            let step = match self.state {
                State::Answer => self.answer()?,
                State::Name => self.name()?,
                State::Fields(listing) => self.fields(listing)?,
                State::Key(listing, 0) => {
                    self.state = State::Done;
                    Step::Part(Part::End(self.end(listing)?))
                }
                State::Key(listing, left) => self.key(listing, left - 1)?,
                State::List(listing, fields) => self.list(listing, fields)?,
                State::Events(listing, 0, fields) => self.go(State::Key(listing, fields)),
                State::Events(listing, left, fields) => self.event(State::Events(listing, left - 1, fields))?,
                State::Value(listing, field, fields) => self.value(listing, field, fields)?,
                State::Other(small) => self.other(small)?,
                State::Done => return Ok(None),
            };
            match step {
                Step::On => {}
                Step::Part(part) => return Ok(Some(part)),
                Step::Starved => return Ok(None),
            }
        }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::On
    }

    fn answer(&mut self) -> Result<Step, AnswerError> {
        let Some(first) = token(&self.buffer[self.start..])? else { return Ok(Step::Starved) };
        if first.container == Some(Container::Map) && first.values == 2 {
            self.start += first.head;
            return Ok(self.go(State::Name));
        }
        // A name alone is an answer without content; anything else is none.
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let name = clipped(Cursor::new(&self.buffer[whole]).item()?.text().ok_or(AnswerError::Field("map"))?);
        self.state = State::Done;
        Ok(Step::Part(Part::Other(Answer::Unknown(name))))
    }

    fn name(&mut self) -> Result<Step, AnswerError> {
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let name = Cursor::new(&self.buffer[whole]).item()?.text().ok_or(AnswerError::Field("name"))?;
        match (name, Small::named(name)) {
            (b"Events", _) => Ok(self.begin(Listing::Events)),
            (b"TreeDump", _) => Ok(self.begin(Listing::TreeDump)),
            (_, Some(small)) => Ok(self.go(State::Other(small))),
            (other, None) => {
                let name = clipped(other);
                self.state = State::Done;
                Ok(Step::Part(Part::Other(Answer::Unknown(name))))
            }
        }
    }

    fn begin(&mut self, listing: Listing) -> Step {
        self.state = State::Fields(listing);
        Step::Part(Part::Begin(listing))
    }

    fn fields(&mut self, listing: Listing) -> Result<Step, AnswerError> {
        let Some(head) = self.head()? else { return Ok(Step::Starved) };
        if head.container != Some(Container::Map) {
            return Err(AnswerError::Field("map"));
        }
        Ok(self.go(State::Key(listing, head.values / 2)))
    }

    fn key(&mut self, listing: Listing, left: u64) -> Result<Step, AnswerError> {
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let field = match Cursor::new(&self.buffer[whole]).item()?.text() {
            Some(b"events") => return Ok(self.go(State::List(listing, left))),
            Some(b"last_event_id") => Field::LastEventId,
            Some(b"reset_scope") => Field::ResetScope,
            Some(b"page") => Field::Page,
            Some(b"last") => Field::Last,
            Some(b"lacking") => Field::Lacking,
            Some(_) | None => Field::Unknown,
        };
        Ok(self.go(State::Value(listing, field, left)))
    }

    fn list(&mut self, listing: Listing, fields: u64) -> Result<Step, AnswerError> {
        let Some(head) = self.head()? else { return Ok(Step::Starved) };
        if head.container != Some(Container::Array) {
            return Err(AnswerError::Field("events"));
        }
        Ok(self.go(State::Events(listing, head.values, fields)))
    }

    fn event(&mut self, next: State) -> Result<Step, AnswerError> {
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let event = router::decode_event(&mut Cursor::new(&self.buffer[whole]))?;
        self.state = next;
        Ok(Step::Part(Part::Event(event)))
    }

    fn value(&mut self, listing: Listing, field: Field, left: u64) -> Result<Step, AnswerError> {
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let value = Cursor::new(&self.buffer[whole]).item()?;
        match (field, value) {
            (Field::LastEventId, Value::Unsigned(id)) => self.tail.last_event_id = Some(id),
            (Field::ResetScope, Value::Text(scope)) => self.tail.reset_scope = Some(clipped(scope)),
            (Field::Page, Value::Unsigned(page)) => self.tail.page = Some(page),
            (Field::Last, Value::Bool(last)) => self.tail.last = Some(last),
            (Field::LastEventId, _) => return Err(AnswerError::Field("last_event_id")),
            (Field::Page, _) => return Err(AnswerError::Field("page")),
            (Field::Last, _) => return Err(AnswerError::Field("last")),
            // A scope that is a map is one of a part, which has no name here: not `all`.
            (Field::ResetScope, _) => self.tail.reset_scope = Some(String::new()),
            (Field::Lacking, value) => self.tail.lacking = value == Value::Bool(true),
            (Field::Unknown, _) => {}
        }
        Ok(self.go(State::Key(listing, left)))
    }

    fn end(&mut self, listing: Listing) -> Result<Tail, AnswerError> {
        let pending = std::mem::take(&mut self.tail);
        Ok(Tail {
            listing,
            last_event_id: pending.last_event_id.ok_or(AnswerError::Field("last_event_id"))?,
            reset_scope: pending.reset_scope.unwrap_or_else(|| "all".to_owned()),
            page: u32::try_from(pending.page.unwrap_or(0)).map_err(|_| AnswerError::Field("page"))?,
            last: pending.last.unwrap_or(true),
            lacking: pending.lacking,
        })
    }

    fn other(&mut self, small: Small) -> Result<Step, AnswerError> {
        let Some(whole) = self.whole()? else { return Ok(Step::Starved) };
        let answer = small.read(&mut Cursor::new(&self.buffer[whole]))?;
        self.state = State::Done;
        Ok(Step::Part(Part::Other(answer)))
    }

    /// Enters the container that is next.
    fn head(&mut self) -> Result<Option<Token>, AnswerError> {
        let head = token(&self.buffer[self.start..])?;
        self.start += head.map_or(0, |head| head.head);
        Ok(head)
    }

    /// Where the next value is, once it is whole; it counts as used then.
    fn whole(&mut self) -> Result<Option<std::ops::Range<usize>>, AnswerError> {
        self.scanned += self.scan.advance(&self.buffer[self.start + self.scanned..])?;
        if self.scanned > MAX_VALUE_BYTES {
            return Err(AnswerError::ValueTooLong);
        }
        if !self.scan.is_done() {
            return Ok(None);
        }
        let whole = self.start..self.start + self.scanned;
        self.start = whole.end;
        self.scan = Scan::one();
        self.scanned = 0;
        Ok(Some(whole))
    }
}

enum Step {
    /// Something was read that is no part.
    On,
    Part(Part),
    /// Nothing can be read before more bytes come.
    Starved,
}

fn clipped(name: &[u8]) -> String {
    crate::clip_bytes(name, crate::Event::UNKNOWN_BYTES)
}

impl Item {
    /// Reads one item's whole data, and how many odd events were left out of it (rule 8).
    pub fn decode(data: &[u8]) -> Result<(Self, u64), AnswerError> {
        let mut reader = DumpReader::new();
        let (mut events, mut odd) = (Vec::new(), 0);
        for part in reader.push(data) {
            match part? {
                Part::Begin(_) => {}
                Part::Event(Ok(event)) => events.push(event),
                Part::Event(Err(_)) => odd += 1,
                Part::Other(answer) => return Ok((answer.into(), 0)),
                Part::End(tail) => {
                    let Tail { last_event_id, reset_scope, page, last, lacking, .. } = tail;
                    let answer = match tail.listing {
                        Listing::Events => Answer::Events { events, last_event_id },
                        Listing::TreeDump => Answer::TreeDump { events, last_event_id, reset_scope },
                    };
                    return Ok((Self { answer, page, last, lacking }, odd));
                }
            }
        }
        Err(AnswerError::Broken)
    }
}

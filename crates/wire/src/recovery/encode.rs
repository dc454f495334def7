//! Answers to MessagePack, as 1.6.1 names and orders them.

use bytes::Bytes;

use super::{Answer, Item};
use crate::{
    out::Out,
    router::{self, RouterEvent},
};

impl Item {
    /// The item's data. Byte-equal with 1.6.1 for an answer of one page.
    pub fn encode(&self) -> Bytes {
        let mut out = Out::default();
        match &self.answer {
            Answer::Events { events, last_event_id } => {
                self.listing(&mut out, events, *last_event_id, None);
            }
            Answer::TreeDump { events, last_event_id, reset_scope } => {
                self.listing(&mut out, events, *last_event_id, Some(reset_scope));
            }
            Answer::TreeDumpFailed { last_event_id, message } => {
                variant(&mut out, "TreeDumpFailed", 2);
                number(&mut out, "last_event_id", *last_event_id);
                out.text("message");
                out.text(message);
            }
            Answer::TooNew { requested_start, requested_end, newest_available } => {
                variant(&mut out, "TooNew", 3);
                number(&mut out, "requested_start", *requested_start);
                number(&mut out, "requested_end", *requested_end);
                number(&mut out, "newest_available", *newest_available);
            }
            Answer::InvalidRange { start_id, end_id } => {
                variant(&mut out, "InvalidRange", 2);
                number(&mut out, "start_id", *start_id);
                number(&mut out, "end_id", *end_id);
            }
            Answer::Error(message) => {
                out.map(1);
                out.text("Error");
                out.text(message);
            }
            Answer::Unknown(name) => {
                out.map(1);
                out.text(name);
                out.nil();
            }
        }
        out.finish()
    }

    /// A dump has a scope, events by their numbers have none.
    fn listing(&self, out: &mut Out, events: &[RouterEvent], last_event_id: u64, scope: Option<&str>) {
        let name = if scope.is_some() { "TreeDump" } else { "Events" };
        let paged = self.page > 0 || !self.last;
        variant(out, name, 2 + u16::from(scope.is_some()) + if paged { 2 } else { 0 } + u16::from(self.lacking));
        out.text("events");
        out.array(events.len());
        for event in events {
            router::encode_event(out, event);
        }
        number(out, "last_event_id", last_event_id);
        if let Some(scope) = scope {
            out.text("reset_scope");
            out.text(scope);
        }
        if paged {
            number(out, "page", self.page.into());
            out.text("last");
            out.boolean(self.last);
        }
        if self.lacking {
            out.text("lacking");
            out.boolean(true);
        }
    }
}

fn variant(out: &mut Out, name: &str, fields: u16) {
    out.map(1);
    out.text(name);
    out.map(fields);
}

fn number(out: &mut Out, key: &str, value: u64) {
    out.text(key);
    out.unsigned(value);
}

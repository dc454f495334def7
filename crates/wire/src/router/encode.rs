//! Router events to MessagePack: named maps, in the order of 1.6.1's fields.

use bytes::Bytes;

use super::{Domain, KvData, MediaInfo, RouterEvent, StoredBlock};
use crate::out::Out;

/// The payload of an envelope on `kv-events`: a list of events.
pub fn encode_events(events: &[RouterEvent]) -> Bytes {
    let mut out = Out::default();
    out.array(events.len());
    for one in events {
        event(&mut out, one);
    }
    out.finish()
}

pub(crate) fn event(out: &mut Out, event: &RouterEvent) {
    let optional = [event.domain != Domain::Legacy, event.state_source.is_some(), event.session_id.is_some()];
    out.map(3 + optional.into_iter().map(u16::from).sum::<u16>());
    out.text("worker_id");
    out.unsigned(event.worker_id);
    out.text("storage_tier");
    out.text(event.storage_tier.name());
    match &event.domain {
        Domain::Legacy => {}
        Domain::Worker => domain(out, Some("worker")),
        Domain::CacheOwner => domain(out, Some("cache_owner")),
        Domain::Unknown(name) => domain(out, Some(&**name).filter(|name| !name.is_empty())),
    }
    out.text("event");
    out.map(3);
    out.text("event_id");
    out.unsigned(event.event.event_id);
    out.text("data");
    data(out, &event.event.data);
    out.text("dp_rank");
    out.unsigned(event.event.dp_rank.into());
    for (key, value) in [("state_source", &event.state_source), ("session_id", &event.session_id)] {
        if let Some(value) = value {
            out.text(key);
            out.text(value);
        }
    }
}

fn domain(out: &mut Out, name: Option<&str>) {
    out.text("residency_domain");
    out.optional(name, Out::text);
}

fn data(out: &mut Out, data: &KvData) {
    match data {
        KvData::Stored(stored) => {
            out.map(1);
            out.text("stored");
            out.map(3);
            out.text("parent_hash");
            out.optional(stored.parent_hash, Out::unsigned);
            out.text("start_position");
            out.optional(stored.start_position, |out, position| out.unsigned(position.into()));
            out.text("blocks");
            out.array(stored.blocks.len());
            for one in &stored.blocks {
                block(out, one);
            }
        }
        KvData::Removed(hashes) => {
            out.map(1);
            out.text("removed");
            out.map(1);
            out.text("block_hashes");
            out.array(hashes.len());
            for hash in hashes {
                out.unsigned(*hash);
            }
        }
        KvData::Cleared => out.text("cleared"),
    }
}

fn block(out: &mut Out, block: &StoredBlock) {
    out.map(3);
    out.text("block_hash");
    out.unsigned(block.block_hash);
    out.text("tokens_hash");
    out.unsigned(block.tokens_hash);
    out.text("mm_extra_info");
    out.optional(block.media.as_ref(), media);
}

fn media(out: &mut Out, media: &MediaInfo) {
    out.map(1);
    out.text("mm_objects");
    out.array(media.objects.len());
    for object in &media.objects {
        out.map(2);
        out.text("mm_hash");
        out.unsigned(object.hash);
        out.text("offsets");
        out.array(object.offsets.len());
        for (from, to) in &object.offsets {
            out.array(2);
            out.unsigned(*from);
            out.unsigned(*to);
        }
    }
}

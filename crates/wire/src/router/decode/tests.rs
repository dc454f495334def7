//! Blocks that are known by their bytes.

use super::*;
use crate::router::encode_events;

/// What was read, and how much was left; what is broken leaves the place anywhere.
fn read(bytes: &[u8], read: impl FnOnce(&mut Cursor<'_>) -> Result<StoredBlock, Odd>) -> Option<(Result<StoredBlock, RouterFault>, usize)> {
    let mut cursor = Cursor::new(bytes);
    match read(&mut cursor) {
        Ok(block) => Some((Ok(block), cursor.remaining())),
        Err(Odd::Event(fault)) => Some((Err(fault), 0)),
        Err(Odd::Broken) => None,
    }
}

/// Each byte in the place of each, and each end.
#[test]
fn blocks_known_by_their_bytes_are_what_they_say() {
    let block = StoredBlock { block_hash: 0xc0c1_c2c3_c4c5_c6c7, tokens_hash: u64::MAX - 0xcf, media: None };
    let stored = StoredBlocks { parent_hash: None, start_position: None, blocks: vec![block.clone()] };
    let event = KvCacheEvent { event_id: 1, data: KvData::Stored(stored), dp_rank: 0 };
    let event =
        RouterEvent { worker_id: 1, storage_tier: Tier::Device, domain: Domain::Legacy, event, state_source: None, session_id: None };
    let payload = encode_events(&[event]);
    let start = payload.windows(12).position(|window| window == b"\x83\xaablock_hash").expect("a block");
    let mut good = payload[start..start + 57].to_vec();
    assert_eq!(usual_block(&mut Cursor::new(&good)), Some(block));
    for end in 0..good.len() {
        assert_eq!(read(&good[..end], super::block), None);
    }
    good.extend([0xc0; 20]);
    for place in 0..57 {
        for byte in 0..=u8::MAX {
            let mut bytes = good.clone();
            bytes[place] = byte;
            assert_eq!(read(&bytes, super::block), read(&bytes, any_block), "{byte:#x} at {place}");
        }
    }
}

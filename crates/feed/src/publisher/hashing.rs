//! Local hashes of a call's blocks, blocks with media included.

use index::{BlockSize, LocalHash, Seed, Window, local_hashes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::call::StoredCall;

/// The local hash of each block of `call` under `seed`.
///
/// A block with media is hashed over its tokens and the hashes of its objects, ascending, whatever their places; an
/// entry without objects is text. These are the hashes routers of other makes compute, too.
pub(super) fn hash_blocks(call: &StoredCall, block_size: BlockSize, seed: Seed) -> Vec<LocalHash> {
    let mut locals = Vec::new();
    local_hashes(&call.token_ids, block_size, seed, call.window, &mut locals);
    let stride = block_size.get() as usize;
    let window = match call.window {
        Window::Plain => stride,
        Window::Eagle => stride + 1,
    };
    for ((position, media), local) in call.block_mm_infos.iter().enumerate().zip(&mut locals) {
        let Some(media) = media.as_ref().filter(|media| !media.objects.is_empty()) else { continue };
        let Some(tokens) = call.token_ids.get(position * stride..position * stride + window) else { break };
        let mut objects: Vec<_> = media.objects.iter().map(|object| object.hash).collect();
        objects.sort_unstable();
        let words = tokens.iter().flat_map(|token| token.to_le_bytes());
        let bytes: Vec<u8> = words.chain(objects.iter().flat_map(|object| object.to_le_bytes())).collect();
        *local = LocalHash(xxh3_64_with_seed(&bytes, seed.get()));
    }
    locals
}

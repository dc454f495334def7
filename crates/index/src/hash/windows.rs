//! XXH3-64 of many windows of tokens under one seed.
//!
//! The values are those of the general function over the tokens' little-endian bytes. What depends on the seed alone is
//! worked out once: over more than 240 bytes, as a block of 64 tokens has, the general function makes a secret of 192
//! bytes anew at each call. Windows are read as words where they lie, without a copy as bytes.
//!
//! Against a loop over the general function, in CPU time: blocks of 64 and 128 tokens 0.4, of 16 and 32 the same.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::LocalHash;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

/// What the lanes of a long window start from.
const LANES_START: [u64; LANES] = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];

/// The algorithm's own secret, in little-endian words.
const SECRET: [u64; SECRET_WORDS] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
    0xc3eb_d334_83ac_c5ea,
    0xeb63_13fa_ffa0_81c5,
    0x49da_f0b7_51dd_0d17,
    0x9e68_d429_2655_16d3,
    0xfca1_477d_58be_162b,
    0xce31_d07a_d1b8_f88f,
    0x2804_1695_8f3a_cb45,
    0x7e40_4bbb_cafb_d7af,
];
const SECRET_WORDS: usize = 24;
/// Bytes of the secret before the part for the last stripe, and before the part for the final mixing.
const LAST_STRIPE: usize = 121;
const MERGE: usize = 11;

/// A stripe is 64 bytes: 16 tokens, taken as 8 words.
const STRIPE: usize = 16;
const LANES: usize = 8;
/// A piece is 16 bytes.
const PIECE: usize = 4;

/// A seed and what follows from it.
pub(super) struct Windows {
    seed: u64,
    secret: [u64; SECRET_WORDS],
    /// The secret's parts that do not lie on words.
    last_stripe: [u64; LANES],
    merge: [u64; LANES],
}

impl Windows {
    pub(super) fn new(seed: u64) -> Self {
        let mut secret = SECRET;
        for pair in secret.chunks_exact_mut(2) {
            pair[0] = pair[0].wrapping_add(seed);
            pair[1] = pair[1].wrapping_sub(seed);
        }
        Self { seed, secret, last_stripe: words_at(&secret, LAST_STRIPE), merge: words_at(&secret, MERGE) }
    }

    /// Appends the hash of each window of `window` tokens that begins at a multiple of `stride` and lies in `tokens`.
    pub(super) fn hash_all(&self, tokens: &[u32], window: usize, stride: usize, out: &mut Vec<LocalHash>) {
        if window == stride {
            self.hash_each(tokens.chunks_exact(window), window, out);
        } else {
            self.hash_each(tokens.windows(window).step_by(stride), window, out);
        }
    }

    fn hash_each<'a>(&self, windows: impl Iterator<Item = &'a [u32]>, length: usize, out: &mut Vec<LocalHash>) {
        match length {
            // 20 to 128 bytes; for the usual block sizes with the length known to the compiler.
            16 => out.extend(windows.map(|window| LocalHash(self.middle_of::<16>(window)))),
            32 => out.extend(windows.map(|window| LocalHash(self.middle_of::<32>(window)))),
            5..=32 => out.extend(windows.map(|window| LocalHash(self.middle(window)))),
            // 244 to 1024 bytes: long, and no longer than the secret lasts.
            61..=256 => self.long_all(windows, out),
            _ => {
                let mut bytes = vec![0; length * size_of::<u32>()];
                out.extend(windows.map(|window| {
                    for (to, token) in bytes.chunks_exact_mut(size_of::<u32>()).zip(window) {
                        to.copy_from_slice(&token.to_le_bytes());
                    }
                    LocalHash(xxh3_64_with_seed(&bytes, self.seed))
                }));
            }
        }
    }

    #[inline]
    fn middle_of<const LENGTH: usize>(&self, window: &[u32]) -> u64 {
        window.first_chunk::<LENGTH>().map_or_else(|| self.middle(window), |known| self.middle(known))
    }

    /// The sum of products of pieces, taken in pairs from both ends inwards.
    #[inline(always)]
    fn middle(&self, window: &[u32]) -> u64 {
        let mut sum = start(window);
        for (pair, secret) in self.secret.chunks_exact(4).take(window.len().div_ceil(2 * PIECE)).enumerate() {
            let front = &window[PIECE * pair..];
            let back = &window[window.len() - PIECE * (pair + 1)..];
            sum = sum.wrapping_add(fold(word(front, 0) ^ secret[0], word(front, 1) ^ secret[1]));
            sum = sum.wrapping_add(fold(word(back, 0) ^ secret[2], word(back, 1) ^ secret[3]));
        }
        avalanche(sum)
    }

    fn long_all<'a>(&self, windows: impl Iterator<Item = &'a [u32]>, out: &mut Vec<LocalHash>) {
        #[cfg(target_arch = "x86_64")]
        if wide::is_here() {
            wide::long_all(self, windows, out);
            return;
        }
        out.extend(windows.map(|window| LocalHash(self.long(window))));
    }

    fn long(&self, window: &[u32]) -> u64 {
        let mut lanes = LANES_START;
        for (stripe, secret) in self.stripes(window) {
            for (lane, secret) in secret.iter().enumerate() {
                let data = word(stripe, lane);
                let key = data ^ secret;
                lanes[lane ^ 1] = lanes[lane ^ 1].wrapping_add(data);
                lanes[lane] = lanes[lane].wrapping_add((key & 0xFFFF_FFFF).wrapping_mul(key >> 32));
            }
        }
        self.merged(window, &lanes)
    }

    /// The stripes of a long window, each with its part of the secret: one after the other, then the last 64 bytes.
    #[inline]
    fn stripes<'a>(&'a self, window: &'a [u32]) -> impl Iterator<Item = (&'a [u32], &'a [u64])> {
        let inner = window.chunks_exact(STRIPE).take((window.len() - 1) / STRIPE).zip(self.secret.windows(LANES));
        inner.chain([(&window[window.len() - STRIPE..], &self.last_stripe[..])])
    }

    #[inline]
    fn merged(&self, window: &[u32], lanes: &[u64; LANES]) -> u64 {
        let pairs = lanes.chunks_exact(2).zip(self.merge.chunks_exact(2));
        avalanche(pairs.fold(start(window), |sum, (lanes, secret)| sum.wrapping_add(fold(lanes[0] ^ secret[0], lanes[1] ^ secret[1]))))
    }
}

#[inline]
fn start(window: &[u32]) -> u64 {
    (window.len() as u64 * size_of::<u32>() as u64).wrapping_mul(PRIME64_1)
}

/// Two tokens as one little-endian word.
#[inline]
fn word(tokens: &[u32], at: usize) -> u64 {
    u64::from(tokens[2 * at]) | u64::from(tokens[2 * at + 1]) << 32
}

/// Eight words that begin at a byte inside a word.
fn words_at(secret: &[u64; SECRET_WORDS], byte: usize) -> [u64; LANES] {
    let (first, shift) = (byte / 8, byte % 8 * 8);
    std::array::from_fn(|at| secret[first + at] >> shift | secret[first + at + 1] << (64 - shift))
}

#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn avalanche(mut sum: u64) -> u64 {
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(AVALANCHE);
    sum ^ sum >> 32
}

/// The lanes of long windows with 256-bit registers, which the compiler does not come to by itself: without it, blocks
/// of 64 tokens take 0.8 of the time of a loop over the general function, and with it 0.4.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "one call, which needs a processor that has AVX2")]
mod wide {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_extract_epi64, _mm256_mul_epu32, _mm256_set_epi32, _mm256_set_epi64x, _mm256_shuffle_epi32,
        _mm256_srli_epi64, _mm256_xor_si256,
    };

    use super::{LANES, LANES_START, LocalHash, Windows};

    pub(super) fn is_here() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
    }

    /// Call it only where [`is_here`].
    pub(super) fn long_all<'a>(of: &Windows, windows: impl Iterator<Item = &'a [u32]>, out: &mut Vec<LocalHash>) {
        assert!(is_here());
        // SAFETY: the only demand of a safe function that enables a target feature is that the processor has it.
        unsafe { all(of, windows, out) }
    }

    #[target_feature(enable = "avx2")]
    fn all<'a>(of: &Windows, windows: impl Iterator<Item = &'a [u32]>, out: &mut Vec<LocalHash>) {
        for window in windows {
            let mut lanes = [four(&LANES_START), four(&LANES_START[4..])];
            for (stripe, secret) in of.stripes(window) {
                for (half, lanes) in lanes.iter_mut().enumerate() {
                    let data = eight(&stripe[8 * half..]);
                    let key = _mm256_xor_si256(data, four(&secret[4 * half..]));
                    let product = _mm256_mul_epu32(key, _mm256_srli_epi64::<32>(key));
                    // Each word goes to the lane beside its own.
                    let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
                    *lanes = _mm256_add_epi64(*lanes, _mm256_add_epi64(product, swapped));
                }
            }
            out.push(LocalHash(of.merged(window, &words(lanes))));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn four(words: &[u64]) -> __m256i {
        _mm256_set_epi64x(words[3] as i64, words[2] as i64, words[1] as i64, words[0] as i64)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn eight(tokens: &[u32]) -> __m256i {
        let token = |at: usize| tokens[at] as i32;
        _mm256_set_epi32(token(7), token(6), token(5), token(4), token(3), token(2), token(1), token(0))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn words([low, high]: [__m256i; 2]) -> [u64; LANES] {
        [
            _mm256_extract_epi64::<0>(low) as u64,
            _mm256_extract_epi64::<1>(low) as u64,
            _mm256_extract_epi64::<2>(low) as u64,
            _mm256_extract_epi64::<3>(low) as u64,
            _mm256_extract_epi64::<0>(high) as u64,
            _mm256_extract_epi64::<1>(high) as u64,
            _mm256_extract_epi64::<2>(high) as u64,
            _mm256_extract_epi64::<3>(high) as u64,
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn general(window: &[u32], seed: u64) -> u64 {
        let bytes: Vec<u8> = window.iter().flat_map(|token| token.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, seed)
    }

    fn hashed(tokens: &[u32], seed: u64) -> u64 {
        let mut out = Vec::new();
        Windows::new(seed).hash_all(tokens, tokens.len(), tokens.len(), &mut out);
        assert_eq!(out.len(), 1);
        out[0].0
    }

    #[test]
    fn every_length_has_the_general_value_with_and_without_wide_registers() {
        for seed in [0, 1337, u64::MAX, 0x0123_4567_89ab_cdef] {
            for length in 1..=400_u32 {
                let tokens: Vec<u32> = (0..length).map(|at| at.wrapping_mul(0x9E37_79B1) ^ length).collect();
                assert_eq!(hashed(&tokens, seed), general(&tokens, seed), "{length} tokens, seed {seed}");
                if (61..=256).contains(&length) {
                    assert_eq!(Windows::new(seed).long(&tokens), general(&tokens, seed), "{length} tokens, seed {seed}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_tokens_and_seed_have_the_general_value(tokens in proptest::collection::vec(any::<u32>(), 1..300), seed: u64) {
            prop_assert_eq!(hashed(&tokens, seed), general(&tokens, seed));
        }
    }
}

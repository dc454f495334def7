//! The 64 bytes each peer sends first (RFC 23): signature, version, mechanism.

use super::error::{Error, quoted};

pub(crate) const GREETING_BYTES: usize = 64;

/// Version we greet with: 3.1 is 3.0 with PING, SUBSCRIBE and CANCEL commands.
const VERSION: (u8, u8) = (3, 1);
const MECHANISM: &[u8] = b"NULL";
const MECHANISM_FIELD: std::ops::Range<usize> = 12..32;

/// Our greeting.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = VERSION.0;
    bytes[11] = VERSION.1;
    bytes[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    bytes
}

/// Judges as much of a peer's greeting as has arrived: its minor version once all 64 bytes are there, an error as
/// soon as one byte proves that it will not do. ZMTP 1 and 2 peers wait for us after 10 to 12 bytes, so waiting for
/// the whole would end in a time-out without a reason.
pub(crate) fn inspect(bytes: &[u8]) -> Result<Option<u8>, Error> {
    let differs = |at: usize, good: fn(u8) -> bool| bytes.get(at).is_some_and(|b| !good(*b));
    // Bytes 1 to 8 are padding; old libraries put a length there.
    if differs(0, |b| b == 0xff) || differs(9, |b| b & 1 == 1) {
        return Err(Error::NotZmtp(quoted(&bytes[..bytes.len().min(32)])));
    }
    if let Some(&major) = bytes.get(10)
        && major < VERSION.0
    {
        // This byte was a revision number then: 0 is ZMTP 1.0, 1 is 2.0.
        return Err(Error::OldVersion((major + 1).min(2)));
    }
    let Some(whole) = bytes.get(..GREETING_BYTES) else {
        return Ok(None);
    };
    let mechanism = &whole[MECHANISM_FIELD];
    let name_end = mechanism.iter().position(|b| *b == 0).unwrap_or(mechanism.len());
    if &mechanism[..name_end] != MECHANISM {
        return Err(Error::Mechanism(quoted(&mechanism[..name_end])));
    }
    // A later major version speaks ours when it sees ours, with all of its commands.
    Ok(Some(if whole[10] > VERSION.0 { VERSION.1 } else { whole[11] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(major: u8, minor: u8, mechanism: &[u8]) -> [u8; GREETING_BYTES] {
        let mut bytes = greeting();
        bytes[10] = major;
        bytes[11] = minor;
        bytes[MECHANISM_FIELD].fill(0);
        bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
        bytes
    }

    #[test]
    fn versions_from_3_0_are_read_at_any_cut() {
        for (major, minor, read) in [(3, 0, 0), (3, 1, 1), (3, 2, 2), (4, 0, 1)] {
            let bytes = peer(major, minor, b"NULL");
            for cut in 0..GREETING_BYTES {
                assert_eq!(inspect(&bytes[..cut]).unwrap(), None, "cut {cut}");
            }
            assert_eq!(inspect(&bytes).unwrap(), Some(read));
        }
    }

    #[test]
    fn zmtp_2_and_1_are_refused_before_they_would_wait_for_us() {
        // ZMTP 2.0: signature, revision 1, socket type.
        let two = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 1];
        assert!(matches!(inspect(&two), Err(Error::OldVersion(2))));
        // ZMTP 1.0: a length, flags, an identity.
        assert!(matches!(inspect(&[1, 0]), Err(Error::NotZmtp(_))));
    }

    #[test]
    fn an_http_server_on_the_port_is_named_for_what_it_says() {
        let error = inspect(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
        assert!(error.to_string().contains("HTTP/1.1 400"), "{error}");
    }

    #[test]
    fn a_secured_peer_is_refused_by_the_name_of_its_mechanism() {
        let error = inspect(&peer(3, 0, b"CURVE")).unwrap_err();
        assert!(error.to_string().contains("CURVE"), "{error}");
    }
}

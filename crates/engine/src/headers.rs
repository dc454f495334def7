//! Which headers cross the proxy.
//!
//! A connection's own headers (RFC 9110 section 7.6.1) stop here in both directions; everything else passes, the
//! client's `Authorization` included.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The rank a request is meant for; vLLM and SGLang read it.
pub(crate) const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Headers of one connection, by name. Those that `Connection` lists are dropped too.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Makes a client's headers those of a request to a worker.
///
/// `Host` and `Content-Length` are set anew by the HTTP client; `Expect` was answered by our own server;
/// `Accept-Encoding` goes because the answer is read on its way; a rank header of the client's own would contradict
/// the choice that was booked.
pub(crate) fn to_worker(headers: &mut HeaderMap, rank: Option<u32>) {
    strip_hop_by_hop(headers);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::ACCEPT_ENCODING, DATA_PARALLEL_RANK] {
        headers.remove(name);
    }
    if let Some(rank) = rank {
        headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
    }
}

/// Makes a worker's headers those of the answer to the client.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&str, &str)| (name.parse::<HeaderName>().expect("a name"), value.parse::<HeaderValue>().expect("a value"));
        pairs.iter().map(pair).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_connections_own_headers_stop_and_the_rest_passes() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Hop"),
            ("connection", "x-other-hop"),
            ("keep-alive", "timeout=5"),
            ("x-hop", "1"),
            ("x-other-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "basic x"),
            ("host", "router"),
            ("content-length", "12"),
            ("expect", "100-continue"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer key"),
            ("content-type", "application/json"),
            ("x-request-id", "7"),
        ]);
        to_worker(&mut headers, None);
        assert_eq!(names(&headers), ["authorization", "content-type", "x-request-id"]);
    }

    #[test]
    fn the_rank_is_ours_alone() {
        let mut headers = map(&[("X-data-parallel-rank", "7")]);
        to_worker(&mut headers, Some(3));
        assert_eq!(headers.get_all(DATA_PARALLEL_RANK).iter().collect::<Vec<_>>(), ["3"]);
        to_worker(&mut headers, None);
        assert!(!headers.contains_key(DATA_PARALLEL_RANK));
    }

    #[test]
    fn a_worker_cannot_close_the_clients_connection() {
        let mut headers = map(&[("connection", "close"), ("server", "uvicorn"), ("content-length", "3")]);
        to_client(&mut headers);
        assert_eq!(names(&headers), ["content-length", "server"]);
    }
}

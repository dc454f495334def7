//! Requests that come back: a worker may be this frontend itself, or another one that sends here.
//!
//! Whatever is sent to a worker, a probe or a question too, names this process and the worker in a header, as `Via` names
//! proxies. Workers keep the header and add to it where they are frontends. What arrives with a name of this process has gone
//! in a circle: it is refused, and the worker that it names is excluded.
//!
//! Not `Via` itself: proxies between frontends may drop it, join it or hide names in it (RFC 9110 section 7.6.3).

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};

/// Names every frontend that a request has passed, the first one first.
pub(crate) const VIA: HeaderName = HeaderName::from_static("x-dynamo-via");

/// Frontends before this one that a request may have passed. Chains of them are unusual and short; one that is longer is a
/// circle whose members do not see it, as where each start gives a process another name.
pub(crate) const MOST_BEFORE: usize = 4;

/// This process, by a name that it alone knows until it sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

/// A worker of this process. Drawn at random, so that a worker can name itself and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    process: Process,
    worker: u64,
}

/// What the header of a request says of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It may be served.
    Open,
    /// It was sent by this process to that worker, and has passed so many other frontends since.
    Back { worker: u64, others: usize },
    /// It has passed more frontends than a chain has.
    TooLong,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self(rand::random())
    }

    /// A name for one more worker.
    pub(super) fn mark(self) -> Mark {
        Mark { process: self, worker: rand::random() }
    }

    /// Reads the way of a request.
    pub(crate) fn way(self, headers: &HeaderMap) -> Way {
        let lines = headers.get_all(VIA).iter().map(|line| line.to_str().unwrap_or_default());
        let passed: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
        let ours = format!("{self}-");
        // The last one: what led there before has been refused already, or is no matter.
        for (others, name) in passed.iter().rev().enumerate() {
            if let Some(worker) = name.strip_prefix(&ours).and_then(|worker| u64::from_str_radix(worker, 16).ok()) {
                return Way::Back { worker, others };
            }
        }
        if passed.len() > MOST_BEFORE { Way::TooLong } else { Way::Open }
    }
}

impl Mark {
    /// Adds this process to the way of a request to the worker.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        keep_from_connection(headers);
        // Digits and a hyphen.
        if let Ok(name) = HeaderValue::from_str(&self.to_string()) {
            headers.append(VIA, name);
        }
    }

    /// Whether this is the worker's number.
    pub(crate) fn is_of(self, worker: u64) -> bool {
        self.worker == worker
    }
}

/// A client may call any header one of its connection's own, which is then not passed on: not this one.
fn keep_from_connection(headers: &mut HeaderMap) {
    let is_ours = |name: &str| name.trim().eq_ignore_ascii_case(VIA.as_str());
    let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    let listed = |line: &HeaderValue| String::from_utf8_lossy(line.as_bytes()).split(',').any(is_ours);
    if !lines.iter().any(listed) {
        return;
    }
    headers.remove(CONNECTION);
    for line in lines {
        let line = String::from_utf8_lossy(line.as_bytes());
        for name in line.split(',').filter(|name| !is_ours(name)) {
            if let Ok(name) = HeaderValue::from_str(name.trim()) {
                headers.append(CONNECTION, name);
            }
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.process, self.worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header as these frontends write it, one after the other.
    fn passed(frontends: impl IntoIterator<Item = Process>) -> (HeaderMap, u64) {
        let (mut headers, mut first) = (HeaderMap::new(), None);
        for frontend in frontends {
            let mark = frontend.mark();
            mark.write(&mut headers);
            first.get_or_insert(mark.worker);
        }
        (headers, first.unwrap_or_default())
    }

    #[test]
    fn what_comes_back_names_the_worker_that_led_here() {
        let (ours, other) = (Process::new(), Process::new());
        let (headers, worker) = passed([ours]);
        assert_eq!(ours.way(&headers), Way::Back { worker, others: 0 });
        assert_eq!(other.way(&headers), Way::Open);
        let (headers, worker) = passed([ours, other, Process::new()]);
        assert_eq!(ours.way(&headers), Way::Back { worker, others: 2 });
        let mut joined = HeaderMap::new();
        let text: Vec<&str> = headers.get_all(VIA).iter().map(|value| value.to_str().unwrap_or_default()).collect();
        joined.insert(VIA, HeaderValue::from_str(&text.join(", ")).unwrap_or(HeaderValue::from_static("")));
        assert_eq!(ours.way(&joined), Way::Back { worker, others: 2 });
    }

    #[test]
    fn a_chain_may_have_so_many_frontends_and_no_more() {
        let chain = |before: usize| passed(std::iter::repeat_with(Process::new).take(before)).0;
        assert_eq!(Process::new().way(&chain(0)), Way::Open);
        assert_eq!(Process::new().way(&chain(MOST_BEFORE)), Way::Open);
        assert_eq!(Process::new().way(&chain(MOST_BEFORE + 1)), Way::TooLong);
    }

    #[test]
    fn a_client_cannot_have_the_header_taken_off_on_the_way() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("close, X-Dynamo-Via"));
        headers.append(CONNECTION, HeaderValue::from_static("x-other"));
        Process::new().mark().write(&mut headers);
        assert_eq!(headers.get_all(CONNECTION).iter().collect::<Vec<_>>(), ["close", "x-other"]);
    }

    #[test]
    fn what_is_no_name_of_ours_counts_as_one_of_others() {
        let ours = Process::new();
        let mut headers = HeaderMap::new();
        headers.append(VIA, HeaderValue::from_bytes(b"\xff\xfe").unwrap_or(HeaderValue::from_static("")));
        headers.append(VIA, HeaderValue::from_str(&format!("{ours}-none, {ours}")).unwrap_or(HeaderValue::from_static("")));
        assert_eq!(ours.way(&headers), Way::Open);
    }
}

//! Where a prediction may differ from the engine, and for which reason.

/// Every way of listening.
pub(super) const ALL: &[&str] = &["replayed", "live only", "mapped"];

/// One request whose prediction differs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Difference {
    /// Scenario of a file that has several.
    part: Option<&'static str>,
    request: &'static str,
    predicted: u64,
    cached: u64,
    /// The ways of listening that differ.
    seats: &'static [&'static str],
    why: &'static str,
}

pub(super) fn difference(
    request: &'static str,
    predicted: u64,
    cached: u64,
    seats: &'static [&'static str],
    why: &'static str,
) -> Difference {
    Difference { part: None, request, predicted, cached, seats, why }
}

impl Difference {
    pub(super) fn within(self, part: &'static str) -> Self {
        Self { part: Some(part), ..self }
    }
}

/// A difference that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) part: Option<String>,
    pub(super) request: String,
    pub(super) seat: &'static str,
    pub(super) predicted: u64,
    pub(super) cached: u64,
}

/// Both ways: what differs is listed, and what is listed differs.
pub(super) fn assert_listed(found: &[Found], listed: &[Difference], seats: &[&'static str]) {
    let expected = |difference: &Difference| {
        let seats = seats.iter().filter(|seat| difference.seats.contains(seat));
        let Difference { part, request, predicted, cached, .. } = *difference;
        seats.map(|seat| Found { part: part.map(str::to_owned), request: request.to_owned(), seat, predicted, cached }).collect::<Vec<_>>()
    };
    let all: Vec<Found> = listed.iter().flat_map(expected).collect();
    for found in found {
        assert!(all.contains(found), "not listed: {found:?}");
    }
    for difference in listed {
        for expected in expected(difference) {
            assert!(found.contains(&expected), "listed because {}, and does not occur: {expected:?}", difference.why);
        }
    }
}

//! The crate against real sockets on loopback. One binary, to link once.
//!
//! - `support`: workers that do exactly what a test says, and a small frontend that relays.
//! - `send`: everything up to the first byte: rule 15's failed sends, headers, the pool.
//! - `relay`: everything after it: bytes untouched, breaks, clients that leave.
//! - `probe`: dead, slow, failing; what that does to requests.
//! - `discover`: questions to an engine. `tls`: https workers.

mod discover;
mod probe;
mod relay;
mod send;
mod support;
mod tls;

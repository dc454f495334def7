//! Publishers and their recovery service over real sockets, with real servers where one is needed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod cycles;
mod generate;
mod load;
mod planes;
mod records;
mod recovered;
mod support;
mod text;

//! What tests of several crates share, and nothing that is shipped.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub mod captures;
pub mod dynamo;
#[cfg(feature = "servers")]
pub mod servers;
pub mod vectors;
#[cfg(feature = "servers")]
pub mod waits;
#[cfg(feature = "world")]
pub mod world;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

//! The log of what goes on below Python: warnings on standard error, more by `DYN_LOG`.

use std::{fs::File, io, os::fd::AsFd, sync::Arc};

use tracing_subscriber::EnvFilter;

/// What is told unless `DYN_LOG` says otherwise: clients of NATS tell each attempt, which its health does once.
const FILTER: &str = "warn,async_nats=off";

/// Starts it, once. Where the process has one already it stays.
pub(crate) fn start() {
    // Not through the standard library's handle: a lock that another thread holds during a `fork` stays locked in the child.
    let Ok(standard_error) = io::stderr().as_fd().try_clone_to_owned() else { return };
    let filter = EnvFilter::try_from_env("DYN_LOG").unwrap_or_else(|_| FILTER.into());
    let log = tracing_subscriber::fmt().with_writer(Arc::new(File::from(standard_error))).with_ansi(false);
    // The second time there is one.
    let _ = log.with_env_filter(filter).try_init();
}

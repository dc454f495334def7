//! `dynamo-mocker`: one simulated engine server as a process of its own.

mod flags;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use mocker::Handle;
use tokio::signal::unix::{SignalKind, signal};

use flags::Flags;

/// Exit status for flags that cannot be, as `EX_USAGE` of sysexits.h.
const EX_USAGE: u8 = 64;

#[tokio::main]
async fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Nothing can be done if the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { EX_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    match run(flags).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("dynamo-mocker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &flags.write_model {
        mocker::folder::write(dir).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = match flags.config(|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("dynamo-mocker: {error}");
            return Ok(EX_USAGE.into());
        }
    };
    let handle = match mocker::serve(config).await {
        Ok(handle) => handle,
        Err(error @ mocker::ServeError::Config(_)) => {
            eprintln!("dynamo-mocker: {error}");
            return Ok(EX_USAGE.into());
        }
        Err(error) => return Err(error.into()),
    };
    // Before anyone learns that this process is ready, and may ask it to end.
    let mut terminate = signal(SignalKind::terminate())?;
    announce(&handle);
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    handle.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// One line for HTTP, one for the endpoint on Dynamo's planes, and one for each rank's sockets; ports that were 0 can be read here.
fn announce(handle: &Handle) {
    let mut lines = format!("http {}\n", handle.url());
    if let Some((endpoint, instance)) = handle.instance() {
        lines.push_str(&format!("dynamo {endpoint} instance {instance:x}\n"));
    }
    for (rank, endpoints) in handle.events().iter().enumerate() {
        let replay = endpoints.replay.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        lines.push_str(&format!("rank {rank} events {} replay {replay}\n", endpoints.events));
    }
    // A closed standard output is no reason to stop serving.
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
}

//! `dynamo-worker`: a sidecar beside a stock engine. It asks the engine what it is, keeps it on record in discovery while it answers,
//! relays its KV events and tells its load.

mod flags;
mod identity;
mod losses;
mod service;
mod sidecar;

use std::{io::IsTerminal as _, process::ExitCode};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use worker::{Runtime, RuntimeConfig, RuntimeError};

use flags::{Flags, Settings};

/// Exit status for invalid flags and variables, as `EX_USAGE` of sysexits.h.
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
    if let Err(error) = RuntimeConfig::check_env() {
        eprintln!("dynamo-worker: {error}");
        return EX_USAGE.into();
    }
    let settings = match Settings::new(flags, |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("dynamo-worker: {error}");
            return EX_USAGE.into();
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,async_nats=off".into());
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    log.with_env_filter(filter).init();
    match run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dynamo-worker: {error:#}");
            match error.downcast_ref::<RuntimeError>() {
                Some(RuntimeError::Discovery(_) | RuntimeError::Nats(_)) => EX_USAGE.into(),
                Some(RuntimeError::Listen { .. } | RuntimeError::Down) | None => ExitCode::FAILURE,
            }
        }
    }
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    // Before anyone learns of this process, and may ask it to end.
    let mut terminate = signal(SignalKind::terminate())?;
    let (mut interrupt, asked) = (signal(SignalKind::interrupt())?, stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        asked.cancel();
    });
    let runtime = Runtime::start(settings.runtime.clone()).await?;
    let (id, discovery) = (format!("{:x}", runtime.instance_id()), &settings.runtime.discovery);
    tracing::info!(engine = %settings.url, id, ?discovery, "beside an engine");
    if settings.runtime.event_host.is_none() || settings.runtime.request_host.is_none() {
        tracing::info!("events and recovery are offered on this host alone; for others give --event-plane-host and --tcp-rpc-host");
    }
    sidecar::run(&settings, &runtime, &stop).await?;
    runtime.shutdown(sidecar::LEAVE).await;
    tracing::info!("withdrawn");
    Ok(())
}

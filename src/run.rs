//! Build, run, drain: the life of the process and its exit status.

use std::{io::IsTerminal, num::NonZero, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Parser;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    app::App,
    config::{
        Config,
        cli::{Cli, Command},
        planes::Backend,
    },
    demo, http,
    server::{self, Patience},
};

/// Exit status of a configuration that cannot be used.
const EXIT_USAGE: u8 = 64;

/// Threads for event streams, which never share a thread with requests: one for so many cores.
const CORES_PER_EVENT_THREAD: usize = 4;

/// How long event streams and discovery have to end in good form, after the last request.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Runs the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to the parser, not to the caller.
            let status = if error.use_stderr() { EXIT_USAGE } else { 0 };
            let printed = error.print();
            return if printed.is_ok() { ExitCode::from(status) } else { ExitCode::FAILURE };
        }
    };
    let result = match cli.command {
        Some(Command::Demo(args)) => demo::run(args),
        None => {
            let check = cli.serve.check;
            let config = match Config::from_args(cli.serve) {
                Ok(config) => config,
                Err(error) => {
                    eprintln!("error: {error}");
                    return ExitCode::from(EXIT_USAGE);
                }
            };
            if check {
                print!("{config}");
                return ExitCode::SUCCESS;
            }
            log_to_stderr(config.log_json, "info,async_nats=off");
            serve(config)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Log lines to standard error; `RUST_LOG` decides, else `default`. The NATS client would log each attempt to connect, where a
/// plane that changes its state is logged once.
pub(crate) fn log_to_stderr(json: bool, default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    if json { lines.json().init() } else { lines.init() }
}

/// The two runtimes: requests, and event streams.
pub(crate) struct Runtimes {
    pub(crate) requests: Runtime,
    pub(crate) events: Runtime,
}

impl Runtimes {
    /// With so many threads for requests. More than have a core to themselves wake each other for nothing.
    pub(crate) fn new(http_threads: usize) -> anyhow::Result<Self> {
        let requests = Builder::new_multi_thread()
            .worker_threads(http_threads)
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the HTTP threads")?;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let events = Builder::new_multi_thread()
            .worker_threads(event_threads(cores))
            .thread_name("kv-events")
            .enable_all()
            .build()
            .context("cannot start the event threads")?;
        Ok(Self { requests, events })
    }
}

/// So that one publisher's flood leaves a thread for the others.
const LEAST_EVENT_THREADS: usize = 2;

fn event_threads(cores: usize) -> usize {
    (cores / CORES_PER_EVENT_THREAD).max(LEAST_EVENT_THREADS)
}

fn serve(config: Config) -> anyhow::Result<()> {
    let runtimes = Runtimes::new(config.http_threads)?;
    let events = runtimes.events.handle().clone();
    runtimes.requests.block_on(async {
        let stop = stop_on_signals()?;
        let listeners = Listeners::bind(&config).await?;
        frontend(config, listeners, events, stop).await
    })
}

/// Raises the limit of open files as far as the system allows without privileges.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "the limit of open files stays as it is");
    }
}

/// The ports, bound before anything else starts, so that a port that is taken ends the process at once.
pub(crate) struct Listeners {
    pub(crate) public: TcpListener,
    admin: Option<TcpListener>,
}

impl Listeners {
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<Self> {
        let public = server::bind(&config.listen.0, config.listen.1, "--http-port").await?;
        let admin = match config.admin_port {
            Some(port) => Some(server::bind("127.0.0.1", port, "--admin-port").await?),
            None => None,
        };
        Ok(Self { public, admin })
    }
}

/// Serves until `stop`, then drains.
pub(crate) async fn frontend(
    config: Config,
    listeners: Listeners,
    events: tokio::runtime::Handle,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    raise_file_limit();
    let address = listeners.public.local_addr()?;
    let drain = config.drain;
    let (mode, workers, planes) = (config.sched.mode, config.workers.len(), config.planes.clone());
    let app = App::start(config, events).await?;
    if let Some(admin) = &listeners.admin {
        info!(address = %admin.local_addr()?, "admin routes listen on a port of their own");
    }
    let discovery = format!("{}: {}", planes.discovery, planes.discovery_reason);
    info!(%address, %mode, workers, discovery, "listening");
    if workers == 0 {
        info!("no worker yet: {}", how_to_add(&planes.discovery));
    }
    let public = if listeners.admin.is_some() { http::public(&app) } else { http::public_with_admin(&app) };
    let drain = server::Drain { within: drain, cut: app.cut.clone() };
    let patience = Patience::default();
    let admin = listeners
        .admin
        .map(|listener| tokio::spawn(server::serve(listener, http::admin_only(&app), stop.clone(), drain.clone(), patience)));
    let cut = server::serve(listeners.public, public, stop, drain, patience).await;
    if cut > 0 {
        warn!(connections = cut, "the drain deadline passed with requests still running; they are cut off");
    }
    if let Some(admin) = admin {
        admin.await?;
    }
    let rest = async {
        app.fleet.stop().await;
        app.planes.stop().await;
    };
    if tokio::time::timeout(STOP_WITHIN, rest).await.is_err() {
        warn!("event streams and discovery do not end within {STOP_WITHIN:?}; they are cut off");
    }
    info!("stopped");
    Ok(())
}

fn how_to_add(discovery: &Backend) -> &'static str {
    match discovery {
        Backend::Mem => "start with --worker http://HOST:PORT, or POST /workers {\"url\": \"http://HOST:PORT\"}",
        Backend::File { .. } | Backend::Etcd { .. } => {
            "start dynamo-worker --engine http://HOST:PORT with the same discovery, or use --worker http://HOST:PORT, or POST /workers {\"url\": \"http://HOST:PORT\"}"
        }
    }
}

/// Cancelled by SIGTERM or SIGINT.
pub(crate) fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: draining"),
            _ = interrupt.recv() => info!("SIGINT: draining"),
        }
        stopped.cancel();
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::event_threads;

    #[test]
    fn event_streams_get_more_threads_on_more_cores_and_never_less_than_two() {
        assert_eq!([1, 2, 4, 16, 128].map(event_threads), [2, 2, 2, 4, 32]);
    }
}

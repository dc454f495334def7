//! `dynamo-frontend demo`: simulated engines with real KV events and this frontend, in one process.
//!
//! The engines publish on loopback with our own sockets; nothing here is wired differently from a real fleet.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use mocker::Handle;
use sched::Mode;

use crate::{
    config::{
        Config,
        cli::{Cli, DemoArgs},
        threads,
    },
    run::{self, Listeners, Runtimes},
};

/// Model name of the simulated engines.
const MODEL: &str = "demo";

/// Log lines of the demo: each routing decision, and what goes wrong.
const LOG: &str = "warn,route=debug";

/// Enough words for a handful of blocks.
const PROMPT: &str = "You are a patient librarian. Answer in one sentence, name the shelf, and never guess. \
The library keeps maps on the first floor, novels on the second, and letters in the cellar. Where are the letters?";

/// Runs the demo until a signal.
pub(crate) fn run(args: DemoArgs) -> anyhow::Result<()> {
    run::log_to_stderr(false, LOG);
    let folder = Folder::write()?;
    let runtimes = Runtimes::new(threads(0))?;
    let events = runtimes.events.handle().clone();
    runtimes.requests.block_on(async {
        let stop = run::stop_on_signals()?;
        let mut engines = Vec::new();
        for _ in 0..args.workers {
            engines.push(mocker::serve(engine(&folder.0)).await.context("cannot start a simulated engine")?);
        }
        let config = config(&args, &folder.0, &engines)?;
        let listeners = Listeners::bind(&config).await?;
        introduce(&args, &engines, listeners.public.local_addr()?);
        run::frontend(config, listeners, events, stop).await?;
        for engine in engines {
            engine.shutdown().await;
        }
        Ok(())
    })
}

fn engine(folder: &Path) -> mocker::Config {
    mocker::Config { model: MODEL.to_owned(), model_path: Some(folder.to_owned()), ..mocker::Config::default() }
}

/// The same configuration as by hand.
fn config(args: &DemoArgs, folder: &Path, engines: &[Handle]) -> anyhow::Result<Config> {
    let mut line = vec!["dynamo-frontend".to_owned()];
    line.extend(["--http-host".to_owned(), args.http_host.clone(), "--http-port".to_owned(), args.http_port.to_string()]);
    line.extend(["--router-mode".to_owned(), args.router_mode.to_string()]);
    line.extend(["--model-path".to_owned(), format!("{MODEL}={}", folder.display())]);
    if args.no_router_kv_events {
        line.push("--no-router-kv-events".to_owned());
    }
    for (at, engine) in engines.iter().enumerate() {
        line.extend(["--worker".to_owned(), format!("{},id=engine-{}", engine.url(), at + 1)]);
    }
    Ok(Config::from_args(Cli::try_parse_from(line)?.serve)?)
}

fn introduce(args: &DemoArgs, engines: &[Handle], address: std::net::SocketAddr) {
    let count = engines.len();
    println!("{count} simulated engines serve '{MODEL}' behind http://{address} (router mode {}). Run this line twice:", args.router_mode);
    println!();
    println!(
        "curl -sS -i http://{address}/v1/completions -H 'content-type: application/json' -d '{{\"model\": \"{MODEL}\", \"prompt\": \"{PROMPT}\", \"max_tokens\": 16}}'"
    );
    println!();
    println!("{}", what_to_look_at(args));
    println!("Then: curl -s http://{address}/workers | python3 -m json.tool    (Ctrl-C ends the demo)");
}

fn what_to_look_at(args: &DemoArgs) -> &'static str {
    match (args.router_mode, args.no_router_kv_events) {
        (Mode::Kv, false) => {
            "Look at the headers: x-dynamo-worker-id is the same worker the second time, and x-dynamo-overlap-blocks says how\n\
             many blocks of the prompt it held already."
        }
        (Mode::Kv, true) => "Look at the headers: x-dynamo-worker-id is the same worker the second time, by prediction alone.",
        (Mode::Direct, _) => "It is refused until you name a worker: -H 'x-dynamo-worker-instance-id: engine-1'",
        (Mode::RoundRobin | Mode::Random | Mode::PowerOfTwo | Mode::LeastLoaded, _) => {
            "Look at the headers: x-dynamo-worker-id says who answered; this mode does not look at prefixes."
        }
    }
}

/// The embedded model folder, written out for as long as the demo runs.
struct Folder(PathBuf);

impl Folder {
    fn write() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("dynamo-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        mocker::folder::write(&dir).with_context(|| format!("cannot write the model folder to {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind in the temporary folder is small and harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

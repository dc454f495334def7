//! The sidecar's life: waits for the engine, keeps it on record while it answers, takes it off when it is dead or another, and again.

use std::time::Duration;

use engine::{
    Client, Failure, Options,
    discover::{AskError, Engine, Metrics},
};
use http::{HeaderMap, header};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use worker::Runtime;

use crate::{
    flags::Settings,
    identity::{Identity, optional},
    losses::{Counts, Losses},
    service::Service,
};

/// Time between two looks at the engine.
const LOOK: Duration = Duration::from_secs(1);
/// The longest one question may take.
const ANSWER: Duration = Duration::from_secs(5);
/// So many looks in a row at a port that refuses are a dead engine, and so many at one where somebody else answers are another.
const REFUSALS: u32 = 2;
/// How long what was published may take to be delivered when we leave.
pub(crate) const LEAVE: Duration = Duration::from_secs(2);

/// Runs until it is stopped.
pub(crate) async fn run(settings: &Settings, runtime: &Runtime, stop: &CancellationToken) -> anyhow::Result<()> {
    let client = Client::new(Options { stop: stop.clone(), authorities: settings.authorities.clone(), ..Options::default() })?;
    let mut headers = HeaderMap::new();
    if let Some(authorization) = &settings.authorization {
        headers.insert(header::AUTHORIZATION, authorization.clone());
    }
    let engine = Engine::new(client, settings.url.clone(), headers, ANSWER.min(settings.silence));
    let mut losses = Losses::default();
    loop {
        let Some(found) = stop.run_until_cancelled(awaited(settings, runtime, &engine)).await else { return Ok(()) };
        let (service, start) = found?;
        let ended = stop.run_until_cancelled(watch(settings, runtime, &engine, (&service, start), &mut losses)).await;
        if let Some(reason) = &ended {
            tracing::warn!(engine = %settings.url, reason, "withdrawn");
        }
        // The service's counts end with it.
        if let Some(counts) = losses.rest(lost(runtime, &service)) {
            tracing::warn!(counts, "{LOST}");
        }
        service.end().await;
        if ended.is_none() {
            return Ok(());
        }
    }
}

/// Asks until the engine answers, and puts it on record.
async fn awaited(settings: &Settings, runtime: &Runtime, engine: &Engine) -> anyhow::Result<(Service, Option<f64>)> {
    let mut said = String::new();
    loop {
        match ask(settings, engine).await {
            Ok((identity, metrics)) => {
                let service = Service::begin(settings, runtime, identity).await?;
                if let Some(metrics) = &metrics {
                    service.tell_load(metrics);
                }
                return Ok((service, metrics.and_then(|metrics| metrics.process_start_seconds)));
            }
            Err(error) => {
                let error = format!("{error:#}");
                if error != said {
                    tracing::info!(engine = %settings.url, reason = error, "waiting for the engine");
                    said = error;
                }
            }
        }
        sleep(LOOK).await;
    }
}

async fn ask(settings: &Settings, engine: &Engine) -> anyhow::Result<(Identity, Option<Metrics>)> {
    let metrics = optional(engine.metrics().await)?;
    let identity = Identity::ask(engine, settings, metrics.as_ref()).await?;
    Ok((identity, metrics))
}

/// What is lost, in the log.
const LOST: &str = "some of what came was dropped or refused";

/// What was lost so far: by a service, and by what all of them share.
fn lost(runtime: &Runtime, service: &Service) -> Counts {
    let (requests, records) = (runtime.request_counters().unwrap_or_default(), runtime.discovery().counts());
    let shared = [
        ("requests refused_full", requests.refused_full),
        ("requests refused_unknown", requests.refused_unknown),
        ("requests refused_malformed", requests.refused_malformed),
        ("requests unreachable_callers", requests.unreachable_callers),
        ("requests stalled_callers", requests.stalled_callers),
        ("requests closed_malformed", requests.closed_malformed),
        ("requests closed_full", requests.closed_full),
        ("discovery leases_lost", records.leases_lost),
    ];
    let mut counts = service.losses();
    counts.extend(shared.map(|(name, count)| (name.to_owned(), count)));
    counts
}

/// Who answers at the engine's address.
enum Still {
    Engine,
    /// It does not say at the moment.
    Unknown,
    /// Somebody else; why.
    Stranger(String),
}

async fn still_serves(engine: &Engine, model: &str) -> Still {
    match engine.models().await {
        Ok(models) if models.iter().any(|listed| listed.id == *model) => Still::Engine,
        Ok(_) => Still::Stranger(format!("the engine serves {model} no more")),
        Err(error) if error.is_no_engines() => Still::Stranger(format!("another server answers at the engine's address: {error}")),
        Err(_) => Still::Unknown,
    }
}

/// Looks at the engine until it is to be taken off the record; why.
async fn watch(
    settings: &Settings,
    runtime: &Runtime,
    engine: &Engine,
    (service, mut start): (&Service, Option<f64>),
    losses: &mut Losses,
) -> String {
    let (mut refusals, mut strangers, mut heard) = (0, 0, Instant::now());
    loop {
        sleep(LOOK).await;
        if let Some(counts) = losses.line(Instant::now(), || lost(runtime, service)) {
            tracing::warn!(counts, "{LOST}");
        }
        let page = engine.metrics().await;
        let answered = page.as_ref().map_or_else(|error| !matches!(error, AskError::Send(_)), |_| true);
        let is_proven = page.as_ref().is_ok_and(|page| page.process_start_seconds.is_some());
        strangers = match answered && !is_proven {
            // Any server may have such a page, or none.
            true => match still_serves(engine, &service.identity().model).await {
                Still::Engine => 0,
                Still::Unknown => strangers,
                Still::Stranger(reason) if strangers + 1 >= REFUSALS => return reason,
                Still::Stranger(_) => strangers + 1,
            },
            false => 0,
        };
        match page {
            Ok(metrics) => {
                (refusals, heard) = (0, Instant::now());
                service.tell_load(&metrics);
                let restarted = matches!((start, metrics.process_start_seconds), (Some(then), Some(now)) if then != now);
                if restarted {
                    // The stream shows the restart to whom it concerns; here only whether it is still the same engine counts.
                    match Identity::ask(engine, settings, Some(&metrics)).await {
                        Ok(identity) if identity == *service.identity() => start = metrics.process_start_seconds,
                        Ok(_) => return "the engine came back as another one".to_owned(),
                        // Asked again at the next look.
                        Err(error) => tracing::debug!(%error, "a restarted engine does not say yet what it is"),
                    }
                }
            }
            // It answers, only not this: that is life, too.
            Err(AskError::Status { .. } | AskError::Shape { .. }) => (refusals, heard) = (0, Instant::now()),
            Err(AskError::Send(error)) => {
                refusals = if matches!(error.failure, Failure::Refused) { refusals + 1 } else { 0 };
                if refusals >= REFUSALS || heard.elapsed() >= settings.silence {
                    return format!("the engine is dead: {error}");
                }
            }
        }
    }
}

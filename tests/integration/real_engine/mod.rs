//! Two real vLLM engines on CPU behind a frontend that is told nothing but their addresses. What it predicts for each
//! request is compared with what the engine then reports as cached, which no part of this project computes.
//!
//! `tests/run --engine` installs the engine and runs this.

mod ask;
mod concurrent;
mod figures;
mod fleet;
mod restarts;
mod sequential;
mod vllm;

use std::path::Path;

use figures::Figures;
use fleet::Fleet;
use vllm::{Sockets, Vllm};

use crate::support::frontend::Frontend;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/tiny-llama");
/// All that the frontend is told beside its workers.
const FLAGS: [&str; 4] = ["--router-mode", "kv", "--model-path", MODEL];
/// A virtual environment with vLLM in it.
const VENV: &str = "DYNAMO_TEST_VLLM";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts two vLLM engines on CPU: tests/run --engine"]
async fn real_engines_cache_what_was_predicted() {
    let venv = std::env::var(VENV).expect("DYNAMO_TEST_VLLM names a virtual environment with vLLM, as tests/engine/install makes one");
    let mut engines = [Sockets::Tcp, Sockets::Ipc].map(|sockets| Vllm::start(Path::new(&venv), Path::new(MODEL), sockets));
    for engine in &mut engines {
        engine.ready().await;
    }
    let urls = engines.each_ref().map(Vllm::url);
    let start = move || Frontend::start(&[&FLAGS[..], &["--worker", &urls[0], "--worker", &urls[1]]].concat());
    let mut fleet = Fleet { frontend: start(), engines, figures: Figures::default(), unchecked: 0 };
    fleet.frontend.serves(2, "exact").await;

    sequential::token_counts(&mut fleet).await;
    sequential::conversations(&mut fleet).await;
    sequential::continuations(&mut fleet).await;
    sequential::documents(&mut fleet).await;
    sequential::boundaries(&mut fleet).await;
    sequential::cache_skipped(&mut fleet).await;
    sequential::evictions(&mut fleet).await;
    sequential::reset(&mut fleet).await;
    println!("one after the other: {}", fleet.figures);
    fleet.assert_exact();
    fleet.assert_self_checks().await;

    let concurrent = concurrent::shared_prefixes(&mut fleet).await;
    println!("at once: {concurrent}");
    assert_eq!((concurrent.above, concurrent.server_errors), (0, 0), "{:#?}", concurrent.differences);

    let churn = concurrent::churn(&mut fleet, start.clone()).await;
    println!("at once, more than the caches hold: {churn}");
    assert_eq!(churn.server_errors, 0);
    fleet.assert_exact();

    fleet.reset().await;
    restarts::warm(&mut fleet).await;
    let meanwhile = restarts::engine(&mut fleet).await;
    restarts::frontend(&mut fleet, start).await;
    restarts::frontend_without_folder(&mut fleet).await;
    println!("one after the other, restarts included: {}", fleet.figures);
    fleet.assert_exact();
    let confirmed = restarts::frontend_without_replay(&mut fleet).await;
    println!("without replay, credit by confirmation: {confirmed}");
    assert_eq!(confirmed.differences, Vec::<String>::new());

    let all = [&fleet.figures, &concurrent, &churn, &meanwhile, &confirmed];
    let sum = |figure: fn(&Figures) -> u64| all.into_iter().map(figure).sum::<u64>();
    println!(
        "real engines: {} requests, {} equal, {} below, {} above, {} 5xx",
        sum(|figures| figures.requests),
        sum(|figures| figures.equal),
        sum(|figures| figures.below),
        sum(|figures| figures.above),
        sum(|figures| figures.server_errors),
    );
}

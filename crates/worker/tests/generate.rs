//! Generation served to a client of the request plane: streams, cancellation, errors, the drain.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use testkit::servers::Server;
use tokio::{sync::mpsc, time::timeout};
use transport::{
    discovery::{Backend, MemStore},
    nats::{Nats, NatsOptions},
    request::{Call, CallError, Cause, Client, ClientOptions},
};
use wire::{
    discovery::{Endpoint, Record},
    generate::{Annotated, EngineOutput, FinishReason, GenerateRequest},
    request::{Codec, TypedError},
};
use worker::{Context, Failure, RequestPlane, Runtime, RuntimeConfig, Served};

use crate::support::{SOON, records, runtime};

fn tokens(token_ids: Vec<u32>, finish_reason: Option<FinishReason>) -> EngineOutput {
    EngineOutput { token_ids, finish_reason, ..EngineOutput::default() }
}

/// Every token of the prompt again, one by one.
fn echo(request: GenerateRequest, _: Context) -> impl futures_util::Stream<Item = Result<EngineOutput, TypedError>> + Send {
    let outputs = request.token_ids.into_iter().map(|id| tokens(vec![id], None));
    stream::iter(outputs.chain([tokens(Vec::new(), Some(FinishReason::Length))]).map(Ok))
}

fn serve(runtime: &Runtime, handler: impl worker::GenerateHandler) -> Served {
    runtime.component("backend").endpoint("generate").serve_generate(handler).unwrap()
}

fn prompt(ids: std::ops::Range<u32>) -> GenerateRequest {
    GenerateRequest { model: "m".to_owned(), token_ids: ids.collect(), ..GenerateRequest::default() }
}

async fn ask(client: &Client, of: &Endpoint, request: &GenerateRequest, codec: Codec) -> Result<Vec<EngineOutput>, CallError> {
    let mut answer = client.call(Call::to(of, request.encode(codec)).unwrap().codec(codec).id("r1")).await?;
    let mut outputs = Vec::new();
    while let Some(item) = timeout(SOON, answer.next()).await.unwrap() {
        match Annotated::decode(&item?, codec).unwrap() {
            Annotated::Output(output) => outputs.push(*output),
            other @ Annotated::Event { .. } => panic!("{other:?}"),
        }
    }
    Ok(outputs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_serves_streams_in_the_callers_codec() {
    let runtime = runtime().await;
    let served = serve(&runtime, echo);
    assert!(matches!(&records(&runtime, 1).await[..], [Record::Endpoint(endpoint)] if endpoint == served.record()));
    let client = Client::new(ClientOptions::default()).await.unwrap();
    for codec in [Codec::Msgpack, Codec::Json] {
        let outputs = ask(&client, served.record(), &prompt(5..300), codec).await.unwrap();
        assert_eq!(outputs.len(), 296);
        assert_eq!(outputs.iter().flat_map(|output| output.token_ids.clone()).collect::<Vec<_>>(), (5..300).collect::<Vec<_>>());
        assert_eq!(outputs.last().unwrap().finish_reason, Some(FinishReason::Length));
    }
    served.withdraw().await;
    assert!(records(&runtime, 0).await.is_empty());
    runtime.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_cancels_the_work() {
    let runtime = runtime().await;
    let (told, mut ends) = mpsc::unbounded_channel();
    let served = serve(&runtime, move |request: GenerateRequest, context: Context| {
        assert_eq!((context.id.as_str(), request.token_ids.len()), ("r1", 3));
        let told = told.clone();
        tokio::spawn(async move {
            context.cancelled.cancelled().await;
            told.send("token").unwrap();
        });
        stream::iter([Ok(tokens(vec![1], None))]).chain(stream::pending())
    });
    let client = Client::new(ClientOptions::default()).await.unwrap();
    let mut answer = client.call(Call::to(served.record(), prompt(0..3).encode(Codec::Msgpack)).unwrap().id("r1")).await.unwrap();
    timeout(SOON, answer.next()).await.unwrap().unwrap().unwrap();
    drop(answer);
    assert_eq!(timeout(SOON, ends.recv()).await.unwrap(), Some("token"));
    runtime.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told_with_its_class() {
    let runtime = runtime().await;
    let served = serve(&runtime, |request: GenerateRequest, _: Context| {
        let failure = if request.token_ids.is_empty() { Failure::Overloaded } else { Failure::InvalidArgument };
        let rest = [Ok(tokens(vec![1], None)), Err(failure.error("no such prompt")), Ok(tokens(vec![2], None))];
        stream::iter(rest)
    });
    let client = Client::new(ClientOptions::default()).await.unwrap();
    let failed = |outcome: Result<Vec<EngineOutput>, CallError>| match outcome.unwrap_err().cause() {
        Cause::Item(error) | Cause::Failed { error: Some(error), .. } => TypedError::clone(error),
        other => panic!("{other:?}"),
    };
    let error = failed(ask(&client, served.record(), &prompt(0..2), Codec::Msgpack).await);
    assert_eq!((error.class.as_str(), error.public.as_deref()), ("InvalidRequest", Some("no such prompt")));
    let error = failed(ask(&client, served.record(), &prompt(0..0), Codec::Json).await);
    assert_eq!((error.reason.as_str(), error.public), ("capacity.worker_overloaded", None));
    // A body that cannot be read is no reason for silence.
    let body = Bytes::from_static(b"\x81\xa9token_ids\xa3abc");
    let refused = client.call(Call::to(served.record(), body).unwrap()).await;
    let error = match refused {
        Err(error) => error,
        Ok(mut answer) => timeout(SOON, answer.next()).await.unwrap().unwrap().unwrap_err(),
    };
    assert!(error.to_string().contains("the request cannot be read: token_ids is a string"), "{error}");
    runtime.shutdown(SOON).await;
}

/// Each request holds until it is let go.
fn held(gate: Arc<tokio::sync::Semaphore>, begun: Arc<AtomicUsize>) -> impl worker::GenerateHandler {
    move |_: GenerateRequest, _: Context| {
        begun.fetch_add(1, Ordering::SeqCst);
        let gate = gate.clone();
        stream::once(async move {
            gate.acquire().await.unwrap().forget();
            Ok(tokens(vec![1], Some(FinishReason::Stop)))
        })
    }
}

/// Waits until so many requests have begun.
async fn reached(begun: &AtomicUsize, count: usize) {
    let enough = async {
        while begun.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, enough).await.unwrap_or_else(|_| panic!("{} of {count} requests have begun", begun.load(Ordering::SeqCst)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_withdraws_first_and_finishes_what_runs() {
    let runtime = runtime().await;
    let (gate, begun) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let served = serve(&runtime, held(gate.clone(), begun.clone()));
    let record = served.record().clone();
    records(&runtime, 1).await;
    let client = Client::new(ClientOptions::default()).await.unwrap();
    let asks = |client: Client, record: Endpoint| {
        tokio::spawn(async move { ask(&client, &record, &prompt(0..1), Codec::Msgpack).await.map(|outputs| outputs.len()) })
    };
    let running = asks(client.clone(), record.clone());
    let mut watch = runtime.discovery().watch("v1/");
    timeout(SOON, watch.next()).await.unwrap();
    reached(&begun, 1).await;
    let closing = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown(SOON).await }
    });
    // The record is gone while the request still runs; one of a router that has not heard is taken.
    timeout(SOON, watch.next()).await.unwrap();
    let late = asks(client.clone(), record.clone());
    reached(&begun, 2).await;
    gate.add_permits(2);
    assert_eq!((running.await.unwrap().unwrap(), late.await.unwrap().unwrap()), (1, 1));
    timeout(SOON, closing).await.unwrap().unwrap();
    assert!(ask(&client, &record, &prompt(0..1), Codec::Msgpack).await.is_err(), "nobody is there any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_nats_an_endpoint_is_on_record_once_requests_reach_it() {
    let mut server = Server::nats();
    server.kill();
    let local = RuntimeConfig::local(Backend::Mem(MemStore::new()));
    let runtime = Runtime::start(RuntimeConfig { request_plane: RequestPlane::Nats, nats_server: server.url(), ..local }).await.unwrap();
    let served = serve(&runtime, echo);
    assert!(records(&runtime, 0).await.is_empty());
    server.restart();
    let found = records(&runtime, 1).await;
    let Record::Endpoint(endpoint) = &found[0] else { panic!("{found:?}") };
    assert_eq!(endpoint, served.record());
    let nats = Nats::connect(&server.url(), NatsOptions::default()).unwrap();
    let client = Client::with_nats(ClientOptions::default(), move || nats.clone()).await.unwrap();
    let outputs = ask(&client, endpoint, &prompt(0..3), Codec::Msgpack).await.unwrap();
    assert_eq!(outputs.len(), 4);
    served.withdraw().await;
    assert!(records(&runtime, 0).await.is_empty());
    runtime.shutdown(Duration::from_secs(5)).await;
}

//! A fleet with discovery in memory, and a client that asks its workers as a frontend would.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use mocker::{Config, DynamoConfig, Handle, Role};
use tokio::time::timeout;
use transport::{
    discovery::{Backend, Change, Discovery, MemStore, Options},
    request::{Call, CallError, Cause, Client, ClientOptions, Responses},
};
use wire::{
    discovery::{Endpoint, Model, ModelCard, Record},
    generate::{Annotated, EngineOutput, GenerateRequest, StopConditions},
    request::{Codec, TypedError},
};
use worker::RuntimeConfig;

/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Tokens per block.
pub(crate) const BLOCK: u32 = 8;

/// Discovery, and who asks.
pub(crate) struct Fleet {
    store: MemStore,
    discovery: Discovery,
    pub(crate) client: Client,
}

impl Fleet {
    pub(crate) async fn new() -> Self {
        let store = MemStore::new();
        let discovery = Discovery::open(Backend::Mem(store.clone()), Options::default()).unwrap();
        Self { store, discovery, client: Client::new(ClientOptions::default()).await.unwrap() }
    }

    /// A worker that does not wait.
    pub(crate) async fn worker(&self, change: impl FnOnce(&mut Config, &mut DynamoConfig)) -> Handle {
        let mut dynamo = DynamoConfig::new(RuntimeConfig::local(Backend::Mem(self.store.clone())));
        let mut config =
            Config { block_size: NonZeroU32::new(BLOCK).unwrap(), blocks: 64, max_model_len: 256, speedup: 0.0, ..Config::default() };
        change(&mut config, &mut dynamo);
        mocker::serve(Config { dynamo: Some(dynamo), ..config }).await.unwrap()
    }

    pub(crate) async fn of_role(&self, role: Role) -> Handle {
        self.worker(|_, dynamo| dynamo.role = role).await
    }

    /// What discovery has once `enough` says so.
    pub(crate) async fn records(&self, enough: impl Fn(&[Record]) -> bool) -> Vec<Record> {
        let mut watch = self.discovery.watch("v1/");
        let mut records: BTreeMap<_, Arc<Record>> = BTreeMap::new();
        let all = async {
            while let Some(change) = watch.next().await {
                let read = |value: &[u8]| Arc::new(Record::from_json(value).unwrap());
                match change {
                    Change::Reset(all) => records = all.into_iter().map(|(key, value)| (key, read(&value))).collect(),
                    Change::Add(key, value) => drop(records.insert(key, read(&value))),
                    Change::Remove(key) => drop(records.remove(&key)),
                }
                let now: Vec<Record> = records.values().map(|record| Record::clone(record)).collect();
                if enough(&now) {
                    return now;
                }
            }
            panic!("the watch ended");
        };
        timeout(SOON, all).await.unwrap_or_else(|_| panic!("waited for records"))
    }

    /// A worker's endpoint and card.
    pub(crate) async fn described(&self, handle: &Handle) -> (Endpoint, ModelCard) {
        let (id, instance) = handle.instance().unwrap();
        let endpoint = |records: &[Record]| {
            records.iter().find_map(|record| match record {
                Record::Endpoint(endpoint) if endpoint.instance_id == instance && endpoint.id == *id => Some(endpoint.clone()),
                _ => None,
            })
        };
        let card = |records: &[Record]| {
            records.iter().find_map(|record| match record {
                Record::Model(Model { instance_id, suffix: None, card, .. }) if *instance_id == instance => Some(card.clone()),
                _ => None,
            })
        };
        let records = self.records(|records| endpoint(records).is_some() && card(records).is_some()).await;
        (endpoint(&records).unwrap(), card(&records).unwrap())
    }

    pub(crate) async fn endpoint(&self, handle: &Handle) -> Endpoint {
        self.described(handle).await.0
    }

    /// A stream of outputs.
    pub(crate) async fn open(&self, of: &Endpoint, request: &GenerateRequest) -> Stream {
        Stream(self.client.call(Call::to(of, request.encode(Codec::Msgpack)).unwrap()).await)
    }

    /// Every output of an answer.
    pub(crate) async fn ask(&self, of: &Endpoint, request: &GenerateRequest) -> Result<Vec<EngineOutput>, TypedError> {
        let mut stream = self.open(of, request).await;
        let mut outputs = Vec::new();
        while let Some(output) = stream.next().await {
            outputs.push(output?);
        }
        Ok(outputs)
    }

    /// Its tokens.
    pub(crate) async fn tokens(&self, of: &Endpoint, request: &GenerateRequest) -> Vec<u32> {
        tokens(&self.ask(of, request).await.unwrap())
    }
}

/// An answer as it comes.
pub(crate) struct Stream(Result<Responses, CallError>);

impl Stream {
    pub(crate) async fn next(&mut self) -> Option<Result<EngineOutput, TypedError>> {
        let responses = match &mut self.0 {
            Ok(responses) => responses,
            Err(error) => return Some(Err(typed(error))),
        };
        let item = timeout(SOON, responses.next()).await.unwrap()?;
        Some(match item {
            Ok(item) => match Annotated::decode(&item, Codec::Msgpack).unwrap() {
                Annotated::Output(output) => Ok(*output),
                other @ Annotated::Event { .. } => panic!("{other:?}"),
            },
            Err(error) => Err(typed(&error)),
        })
    }
}

fn typed(error: &CallError) -> TypedError {
    match error.cause() {
        Cause::Item(error) | Cause::Failed { error: Some(error), .. } => TypedError::clone(error),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn tokens(outputs: &[EngineOutput]) -> Vec<u32> {
    outputs.iter().flat_map(|output| output.token_ids.iter().copied()).collect()
}

/// A prompt, answered with so many tokens exactly.
pub(crate) fn request(prompt: impl IntoIterator<Item = u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        model: "mock-model".to_owned(),
        token_ids: prompt.into_iter().collect(),
        stop_conditions: StopConditions { max_tokens: Some(max_tokens), ignore_eos: Some(true), ..StopConditions::default() },
        ..GenerateRequest::default()
    }
}

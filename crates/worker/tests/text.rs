//! A model that takes text: what clients sent comes as it is, in either codec, and OpenAI's chunks go back.

use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::timeout;
use transport::request::{Call, Client, ClientOptions};
use wire::request::Codec;
use worker::{Chunks, Context, Failure, TextHandler};

use crate::support::{SOON, runtime};

/// Says the prompt again, or refuses one that is none.
struct Parrot;

impl TextHandler for Parrot {
    fn answer(&self, request: Value, _: Context) -> Chunks {
        match request["prompt"].as_str() {
            Some(prompt) => Box::pin(stream::iter([Ok(json!({"choices": [{"text": prompt, "index": 0}]}))])),
            None => Box::pin(stream::iter([Err(Failure::InvalidArgument.error("no prompt")), Ok(Value::Null)])),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_comes_as_the_client_sent_it_and_chunks_go_back() {
    let runtime = runtime().await;
    let served = runtime.component("backend").endpoint("generate").serve_text(Parrot).unwrap();
    let client = Client::new(ClientOptions::default()).await.unwrap();
    let ask = async |body: Vec<u8>, codec: Codec| {
        let mut answer = client.call(Call::to(served.record(), body.into()).unwrap().codec(codec)).await?;
        let mut items = Vec::new();
        while let Some(item) = timeout(SOON, answer.next()).await.unwrap() {
            items.push(item?);
        }
        Ok::<_, transport::request::CallError>(items)
    };
    let (request, answer) = (json!({"model": "m", "prompt": "hi", "seed": 3}), json!({"data": {"choices": [{"text": "hi", "index": 0}]}}));
    let items = ask(request.to_string().into_bytes(), Codec::Json).await.unwrap();
    assert_eq!(items.iter().map(|item| serde_json::from_slice::<Value>(item).unwrap()).collect::<Vec<_>>(), std::slice::from_ref(&answer));
    let items = ask(rmp_serde::to_vec(&request).unwrap(), Codec::Msgpack).await.unwrap();
    assert_eq!(items.iter().map(|item| rmp_serde::from_slice::<Value>(item).unwrap()).collect::<Vec<_>>(), [answer]);
    for (body, codec) in [(b"{}".to_vec(), Codec::Json), (b"\x81".to_vec(), Codec::Msgpack)] {
        let refused = ask(body, codec).await.unwrap_err().to_string();
        assert!(refused.contains("no prompt") || refused.contains("the request cannot be read"), "{refused}");
    }
    drop(served);
    runtime.shutdown(SOON).await;
}

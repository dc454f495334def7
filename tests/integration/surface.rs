//! The HTTP surface as any client meets it: error bodies, methods, framing, protocols, ids and pins.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mocker::{Config, Handle};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    frontend::Frontend,
    http::Answer,
    simulated::{self, BLOCK},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// One engine of two ranks, and a frontend before it.
async fn surface(flags: &[&str]) -> (Handle, Frontend) {
    let engine = simulated::start(Config { ranks: 2, speedup: 0.0, ..Config::default() }).await;
    let worker = format!("{},id=one", engine.url());
    let args: Vec<&str> = ["--router-mode", "kv", "--worker", &worker].iter().chain(flags).copied().collect();
    let frontend = Frontend::start(&args);
    frontend.serves(1, "exact").await;
    (engine, frontend)
}

fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(path).header(header::HOST, "frontend").body(Full::new(body.into())).unwrap()
}

/// Sends a request over HTTP/1.1.
async fn send<B>(address: SocketAddr, request: Request<B>) -> Answer
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    Answer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
}

/// An error in OpenAI's shape, of this status, about this parameter.
fn assert_error(answer: &Answer, status: StatusCode, param: Option<&str>) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/json");
    let body = answer.json();
    let error = body["error"].as_object().unwrap();
    assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"], "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert_eq!(error["param"].as_str(), param, "{body}");
    body["error"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_cannot_be_right_is_a_400_that_names_the_field() {
    let (_engine, frontend) = surface(&[]).await;
    let user = json!([{"role": "user", "content": "hello"}]);
    for (path, body, param) in [
        (COMPLETIONS, json!({"prompt": "x"}), "model"),
        (COMPLETIONS, json!({"model": 7, "prompt": "x"}), "model"),
        (COMPLETIONS, json!({"model": "mock-model"}), "prompt"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": []}), "prompt"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": {"text": "x"}}), "prompt"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": [1, -2, 3]}), "prompt[1]"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": [[1], [4_294_967_296_u64]]}), "prompt[1][0]"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": "x", "cache_salt": ""}), "cache_salt"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": "x", "n": 0}), "n"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": "x", "max_tokens": -1}), "max_tokens"),
        (COMPLETIONS, json!({"model": "mock-model", "prompt": "x", "stream": "perhaps"}), "stream"),
        (CHAT, json!({"model": "mock-model"}), "messages"),
        (CHAT, json!({"messages": user}), "model"),
        (CHAT, json!({"model": "mock-model", "messages": user, "cache_salt": ""}), "cache_salt"),
        (CHAT, json!({"model": "mock-model", "messages": user, "nvext": {"dp_rank": "first"}}), "nvext.dp_rank"),
    ] {
        let answer = frontend.post(path, &body).await;
        let error = assert_error(&answer, StatusCode::BAD_REQUEST, Some(param));
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        answer.header("x-request-id");
    }
    for body in ["", "{", "null", "[1]", "{\"model\": \"mock-model\", \"prompt\": \"x\"} {}", "\u{feff}{}", "{\"model\": \"\u{1}\"}"] {
        let answer = send(frontend.address, request(Method::POST, COMPLETIONS, body)).await;
        let error = assert_error(&answer, StatusCode::BAD_REQUEST, None);
        assert!(error["message"].as_str().unwrap().contains("JSON"), "{body:?}: {error}");
    }
    let answer = send(frontend.address, request(Method::POST, COMPLETIONS, &b"{\"model\": \"\xff\xfe\"}"[..])).await;
    assert_error(&answer, StatusCode::BAD_REQUEST, None);
    let route = frontend.post("/route", &json!({"model": "mock-model", "prompt": []})).await;
    assert_error(&route, StatusCode::BAD_REQUEST, Some("prompt"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_a_404_and_a_wrong_method_a_405() {
    let (_engine, frontend) = surface(&[]).await;
    for path in [COMPLETIONS, "/route"] {
        let answer = frontend.post(path, &json!({"model": "nobody", "prompt": "x"})).await;
        let error = assert_error(&answer, StatusCode::NOT_FOUND, Some("model"));
        assert_eq!((&error["code"], &error["type"]), (&json!("model_not_found"), &json!("not_found_error")));
        assert!(error["message"].as_str().unwrap().contains("nobody"), "{error}");
    }
    assert_error(&frontend.get("/v1/models/nobody").await, StatusCode::NOT_FOUND, Some("model"));
    for (method, path) in [(Method::GET, "/"), (Method::POST, "/v1/nothing"), (Method::PUT, "/v1/completion"), (Method::GET, "/v1")] {
        let answer = send(frontend.address, request(method, path, "")).await;
        let error = assert_error(&answer, StatusCode::NOT_FOUND, None);
        assert!(error["message"].as_str().unwrap().contains(path), "{error}");
    }
    for (method, path, allowed) in [
        (Method::GET, COMPLETIONS, "POST"),
        (Method::DELETE, CHAT, "POST"),
        (Method::OPTIONS, CHAT, "POST"),
        (Method::POST, "/v1/models", "GET,HEAD"),
        (Method::POST, "/metrics", "GET,HEAD"),
        (Method::PUT, "/workers", "GET,HEAD,POST"),
        (Method::GET, "/workers/one", "DELETE"),
        (Method::GET, "/route", "POST"),
    ] {
        let answer = send(frontend.address, request(method.clone(), path, "")).await;
        assert_error(&answer, StatusCode::METHOD_NOT_ALLOWED, None);
        assert_eq!(answer.header("allow"), allowed, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_in_a_path_that_is_no_text_is_a_400_like_any_other() {
    let (_engine, frontend) = surface(&[]).await;
    for (method, path, param) in [(Method::DELETE, "/workers/%FF", "id"), (Method::GET, "/v1/models/a/%FF", "model")] {
        let answer = send(frontend.address, request(method, path, "")).await;
        assert_error(&answer, StatusCode::BAD_REQUEST, Some(param));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_a_silent_worker_may_serve_is_a_503_and_any_other_a_404() {
    let engine = simulated::quick().await;
    // Nothing listens there: it cannot tell what it serves.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = format!("http://{free},id=silent,model=large");
    let frontend = Frontend::start(&["--worker", &silent]);
    let ask = async |model: &str| frontend.post(COMPLETIONS, &json!({"model": model, "prompt": "x"})).await;
    assert_error(&ask("large").await, StatusCode::SERVICE_UNAVAILABLE, None);
    assert_error(&ask("lagre").await, StatusCode::NOT_FOUND, Some("model"));
    let added = frontend.post("/workers", &json!({"url": engine.url()})).await;
    assert_eq!(added.status, StatusCode::CREATED, "{}", added.text());
    frontend.serves(1, "none").await;
    assert_eq!(ask("mock-model").await.status, StatusCode::OK);
    assert_error(&ask("large").await, StatusCode::SERVICE_UNAVAILABLE, None);
    assert_error(&ask("lagre").await, StatusCode::NOT_FOUND, Some("model"));
    let pin = [("x-dynamo-worker-instance-id", "silent")];
    let pinned = frontend.open(COMPLETIONS, &pin, &json!({"model": "mock-model", "prompt": "x"})).await.whole().await;
    assert_error(&pinned, StatusCode::SERVICE_UNAVAILABLE, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_to_a_worker_of_another_model_is_a_400() {
    let one = simulated::start(Config { model: "one".to_owned(), speedup: 0.0, ..Config::default() }).await;
    let two = simulated::start(Config { model: "two".to_owned(), speedup: 0.0, ..Config::default() }).await;
    let workers = [format!("{},id=first", one.url()), format!("{},id=second", two.url())];
    let frontend = Frontend::start(&["--router-mode", "kv", "--worker", &workers[0], "--worker", &workers[1]]);
    frontend.serves(2, "exact").await;
    let header = "x-dynamo-worker-instance-id";
    let ask =
        async |worker: &str| frontend.open(COMPLETIONS, &[(header, worker)], &json!({"model": "one", "prompt": "x"})).await.whole().await;
    assert_eq!(ask("first").await.worker(), "first");
    let error = assert_error(&ask("second").await, StatusCode::BAD_REQUEST, Some(header));
    assert!(error["message"].as_str().unwrap().contains("does not serve 'one'"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_before_a_worker_is_chosen_is_counted_too() {
    let (_engine, frontend) = surface(&["--http-body-limit-mb", "1"]).await;
    let too_large = "x".repeat(1 << 20);
    for body in [
        json!({"model": "mock-model"}),
        json!({"model": "nobody", "prompt": "x", "stream": true}),
        json!({"model": "mock-model", "prompt": too_large}),
        json!({"model": "mock-model", "prompt": "x", "nvext": {"backend_instance_id": "nobody"}}),
    ] {
        let answer = frontend.post(COMPLETIONS, &body).await;
        assert!(answer.status.is_client_error(), "{}", answer.text());
    }
    assert_eq!(frontend.delete("/workers/one").await.status, StatusCode::OK);
    let refused = frontend.post(COMPLETIONS, &json!({"model": "mock-model", "prompt": "x"})).await;
    assert!(refused.status.is_server_error(), "{}", refused.text());
    let page = frontend.get("/metrics").await.text();
    let requests: Vec<&str> = page.lines().filter(|line| line.starts_with("dynamo_frontend_requests_total")).collect();
    let count = |model: &str, shape: &str, status: &str| {
        let labels = [format!("model=\"{model}\""), format!("request_type=\"{shape}\""), format!("status=\"{status}\"")];
        let found = requests.iter().find(|line| labels.iter().all(|label| line.contains(label)));
        found.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    assert_eq!(count("unknown", "unary", "client_error").as_deref(), Some("2"), "no prompt, and too large: {requests:?}");
    assert_eq!(count("unknown", "stream", "client_error").as_deref(), Some("1"), "no such model: {requests:?}");
    assert_eq!(count("mock-model", "unary", "client_error").as_deref(), Some("1"), "no such worker: {requests:?}");
    assert_eq!(count("unknown", "unary", "error").as_deref(), Some("1"), "nobody serves: {requests:?}");
    assert!(!page.contains("nobody"), "names that clients made up are no labels");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_counter_of_the_parts_is_shown() {
    let (_engine, frontend) = surface(&[]).await;
    frontend.complete(&simulated::completion(&simulated::prompt(1, 2 * BLOCK))).await;
    frontend.post(COMPLETIONS, &json!({"model": "mock-model", "prompt": "words", "truncate_prompt_tokens": 1, "max_tokens": 1})).await;
    for name in [
        "dynamo_frontend_prompt_jobs_queued",
        "dynamo_frontend_prompt_jobs_total",
        "dynamo_frontend_prompt_jobs_refused_total",
        "dynamo_frontend_prompt_jobs_panicked_total",
        "dynamo_frontend_engine_tokenize_cache_misses_total",
        "dynamo_frontend_untokenized_requests_total",
        "dynamo_frontend_worker_breaker_opened_total",
        "dynamo_frontend_worker_deaths_total",
        "dynamo_router_active_blocks",
        "dynamo_router_short_walks_total",
        "dynamo_router_kv_unknown_removals_total",
        "dynamo_router_kv_rank_mismatches_total",
        "dynamo_router_kv_replay_failures_total",
        "dynamo_router_kv_self_checks_dropped_total",
        "dynamo_router_kv_self_checks_total{worker_id=\"one\",dp_rank=\"0\",result=\"over\"}",
    ] {
        assert!(frontend.metric(name).await.is_some(), "{name} in:\n{}", frontend.get("/metrics").await.text());
    }
    let reason = "dynamo_frontend_untokenized_requests_total{reason=\"unsupported\"}";
    assert_eq!(frontend.metric(reason).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_answers_as_get_without_a_body() {
    let (_engine, frontend) = surface(&[]).await;
    for path in ["/health", "/live", "/ready", "/v1/models", "/metrics", "/workers"] {
        let head = send(frontend.address, request(Method::HEAD, path, "")).await;
        let get = frontend.get(path).await;
        assert_eq!((head.status, head.header("content-type")), (StatusCode::OK, get.header("content-type")), "{path}");
        assert!(head.body.is_empty() && !get.body.is_empty());
    }
    let nowhere = send(frontend.address, request(Method::HEAD, "/v1/nothing", "")).await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    assert!(nowhere.body.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_above_the_limit_is_a_413_also_in_chunks_and_one_below_is_not() {
    let (_engine, frontend) = surface(&["--http-body-limit-mb", "1"]).await;
    let body = |bytes: usize| {
        let mut text = json!({"model": "mock-model", "prompt": "x", "max_tokens": 1}).to_string();
        text.push_str(&" ".repeat(bytes - text.len()));
        Bytes::from(text)
    };
    let (most, too_much) = (1 << 20, (1 << 20) + 1);
    for path in [COMPLETIONS, CHAT, "/route"] {
        let answer = send(frontend.address, request(Method::POST, path, body(too_much))).await;
        let error = assert_error(&answer, StatusCode::PAYLOAD_TOO_LARGE, None);
        assert!(error["message"].as_str().unwrap().contains("--http-body-limit-mb"), "{error}");
    }
    let admin = send(frontend.address, request(Method::POST, "/workers", body(65 * 1024))).await;
    let error = assert_error(&admin, StatusCode::PAYLOAD_TOO_LARGE, None);
    assert!(!error["message"].as_str().unwrap().contains("--"), "no option sets that limit: {error}");
    let answer = send(frontend.address, request(Method::POST, COMPLETIONS, body(most))).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    for (bytes, status) in [(most, StatusCode::OK), (too_much, StatusCode::PAYLOAD_TOO_LARGE)] {
        assert_eq!(send(frontend.address, chunked(&body(bytes), 64 * 1024)).await.status, status, "{bytes} bytes in chunks");
    }
}

/// A completion in chunks of `size` bytes, without a length.
fn chunked(body: &Bytes, size: usize) -> Request<impl Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static> {
    let pieces: Vec<_> = body.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let request = Request::builder().method(Method::POST).uri(COMPLETIONS).header(header::HOST, "frontend");
    request.body(StreamBody::new(stream::iter(pieces))).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_in_chunks_is_read_as_one() {
    let (_engine, frontend) = surface(&[]).await;
    let prompt = simulated::prompt(1, 2 * BLOCK);
    let body = Bytes::from(simulated::completion(&prompt).to_string());
    let first = send(frontend.address, chunked(&body, 7)).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.text());
    assert_eq!(first.json()["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(simulated::cached_tokens(&first), 0);
    // The engine got the same bytes as without chunks: it has the prompt now.
    let pin = [("x-dynamo-worker-instance-id", "one"), ("x-dynamo-dp-rank", first.header("x-dynamo-dp-rank"))];
    let again = frontend.open(COMPLETIONS, &pin, &simulated::completion(&prompt)).await.whole().await;
    assert_eq!(simulated::cached_tokens(&again), BLOCK as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_to_be_told_to_go_on_is_told() {
    let (_engine, frontend) = surface(&[]).await;
    let body = json!({"model": "mock-model", "prompt": "hello", "max_tokens": 1}).to_string();
    let mut stream = TcpStream::connect(frontend.address).await.unwrap();
    let length = body.len();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: frontend\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut told = vec![0; go_on.len()];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(told, go_on);
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_with_prior_knowledge_is_spoken_on_the_same_port() {
    let (_engine, frontend) = surface(&[]).await;
    let stream = TcpStream::connect(frontend.address).await.unwrap();
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let ask = async |stream: bool| {
        let body = json!({"model": "mock-model", "prompt": "hello", "max_tokens": 3, "ignore_eos": true, "stream": stream});
        let uri = format!("http://{}{COMPLETIONS}", frontend.address);
        let request = Request::builder().method(Method::POST).uri(uri).body(Full::new(Bytes::from(body.to_string()))).unwrap();
        let (head, body) = sender.clone().send_request(request).await.unwrap().into_parts();
        Answer { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    };
    // Two requests share the connection.
    let (plain, streamed) = tokio::join!(ask(false), ask(true));
    assert_eq!(plain.worker(), "one");
    assert_eq!(plain.json()["usage"]["completion_tokens"], 3);
    assert_eq!(streamed.worker(), "one");
    assert!(streamed.text().ends_with("data: [DONE]\n\n"), "{}", streamed.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_is_taken_over_or_made_and_reaches_the_engine() {
    let (_engine, frontend) = surface(&[]).await;
    let body = json!({"model": "mock-model", "prompt": "hello", "max_tokens": 1});
    let given = frontend.open(COMPLETIONS, &[("x-request-id", "order-66")], &body).await.whole().await;
    assert_eq!(given.header("x-request-id"), "order-66");
    assert_eq!(given.json()["id"], "cmpl-order-66", "the engine names its answer by it");
    let made = [frontend.post(COMPLETIONS, &body).await, frontend.post(COMPLETIONS, &body).await];
    let ids = made.each_ref().map(|answer| answer.header("x-request-id").to_owned());
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    assert_eq!(made[0].json()["id"], format!("cmpl-{}", ids[0]));
    let too_long = "x".repeat(257);
    let answer = frontend.open(COMPLETIONS, &[("x-request-id", &too_long)], &body).await.whole().await;
    assert_eq!(answer.header("x-request-id").len(), 32, "an id without bound is not taken over");
    let failed = frontend.open(COMPLETIONS, &[("x-request-id", "order-67")], &json!({"prompt": "x"})).await.whole().await;
    assert_eq!((failed.status, failed.header("x-request-id")), (StatusCode::BAD_REQUEST, "order-67"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_request_goes_to_its_worker_and_rank_and_an_unknown_pin_is_named() {
    let (_engine, frontend) = surface(&[]).await;
    let body = json!({"model": "mock-model", "prompt": "hello", "max_tokens": 1});
    for rank in ["0", "1", "1", "0"] {
        for (worker_header, rank_header) in [
            ("x-dynamo-worker-instance-id", "x-dynamo-dp-rank"),
            ("x-worker-instance-id", "x-dp-rank"),
            ("x-dynamo-worker-instance-id", "x-data-parallel-rank"),
        ] {
            let answer = frontend.open(COMPLETIONS, &[(worker_header, "one"), (rank_header, rank)], &body).await.whole().await;
            assert_eq!((answer.worker(), answer.header("x-dynamo-dp-rank")), ("one", rank), "{rank_header}");
        }
        let mut in_body = body.clone();
        in_body["nvext"] = json!({"backend_instance_id": "one", "dp_rank": rank.parse::<u32>().unwrap()});
        assert_eq!(frontend.post(COMPLETIONS, &in_body).await.header("x-dynamo-dp-rank"), rank);
    }
    for (headers, named) in [
        (vec![("x-dynamo-worker-instance-id", "two")], "x-dynamo-worker-instance-id"),
        (vec![("x-worker-instance-id", "two")], "x-worker-instance-id"),
        (vec![("x-dynamo-dp-rank", "1")], "x-dynamo-dp-rank"),
        (vec![("x-dynamo-worker-instance-id", "one"), ("x-dynamo-dp-rank", "2")], "x-dynamo-dp-rank"),
        (vec![("x-dynamo-worker-instance-id", "one"), ("x-dynamo-dp-rank", "first")], "x-dynamo-dp-rank"),
    ] {
        let answer = frontend.open(COMPLETIONS, &headers, &body).await.whole().await;
        let error = assert_error(&answer, StatusCode::BAD_REQUEST, Some(named));
        assert!(error["message"].as_str().unwrap().contains(named) || named.ends_with("rank"), "{error}");
    }
    let mut in_body = body;
    in_body["nvext"] = json!({"backend_instance_id": "two"});
    assert_error(&frontend.post(COMPLETIONS, &in_body).await, StatusCode::BAD_REQUEST, Some("nvext.backend_instance_id"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_routes_move_to_their_port() {
    let engine = simulated::quick().await;
    let frontend = Frontend::start(&["--worker", &engine.url(), "--admin-port", "0"]);
    let admin = frontend.admin_address();
    for path in ["/workers", "/route", "/reset_prefix_cache"] {
        assert_error(&frontend.get(path).await, StatusCode::NOT_FOUND, None);
    }
    let listed = send(admin, request(Method::GET, "/workers", "")).await;
    assert_eq!(listed.json()["workers"].as_array().unwrap().len(), 1, "{}", listed.text());
    assert_error(&send(admin, request(Method::POST, COMPLETIONS, "{}")).await, StatusCode::NOT_FOUND, None);
}

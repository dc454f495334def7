//! The official `openai` Python client against the frontend: what it takes for granted must hold.

use std::{path::Path, time::Duration};

use mocker::{Config, Faults};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, BLOCK},
};

/// Names the Python that has the packages of `tests/requirements.txt`; `python3` if it is not set.
const PYTHON: &str = "DYNAMO_TEST_PYTHON";
/// The whole conversation takes a few seconds.
const WITHIN: Duration = Duration::from_secs(60);

/// Does what the script asks for between two of its steps; the answer is a line of JSON.
async fn obey(command: &str, frontend: &Frontend, fleet: &[mocker::Handle]) -> Value {
    match command {
        "down" => {
            for engine in fleet {
                engine.set_faults(|faults| faults.refuse = true);
            }
            ready(frontend, 503).await;
            Value::Null
        }
        "up" => {
            for engine in fleet {
                engine.set_faults(|faults| *faults = Faults::default());
            }
            ready(frontend, 200).await;
            eventually("both workers serve again", async || {
                let up = frontend.metric("dynamo_frontend_worker_routable").await;
                seen(up == Some(2.0), up)
            })
            .await;
            Value::Null
        }
        "running" => {
            fleet.iter().map(|engine| engine.gauges(0).unwrap()).map(|gauges| gauges.running + gauges.waiting).sum::<usize>().into()
        }
        "requests" => fleet.iter().map(|engine| engine.counters().requests).sum::<u64>().into(),
        status => {
            let status = status.parse().unwrap_or_else(|_| panic!("the script asks for {status:?}"));
            for engine in fleet {
                engine.set_faults(|faults| faults.status = Some(status));
            }
            Value::Null
        }
    }
}

async fn ready(frontend: &Frontend, status: u16) {
    eventually(&format!("/ready is {status}"), async || {
        let answer = frontend.get("/ready").await;
        seen(answer.status.as_u16() == status, answer.status)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_client_is_served() {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    let engine = Config { adapters: vec!["sql".to_owned()], decode_tokens_per_s: 200.0, prefill_tokens_per_s: 1e6, ..Config::default() };
    let fleet = [simulated::start(engine.clone()).await, simulated::start(engine).await];
    let workers = simulated::workers(&fleet);
    let args: Vec<&str> = ["--router-mode", "kv"].into_iter().chain(workers.iter().map(String::as_str)).collect();
    let frontend = Frontend::start(&args);
    frontend.serves(2, "exact").await;

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/openai_client.py");
    let mut client = Command::new(&python)
        .arg(script)
        .args([format!("http://{}/v1", frontend.address), BLOCK.to_string()])
        .env_remove("OPENAI_API_KEY")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {python}: {error}; set {PYTHON} or use tests/run"));
    let (mut answers, questions) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let conversation = async {
        let mut lines = BufReader::new(questions).lines();
        let mut passed = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            match line.split_once(' ') {
                Some(("passed", name)) => passed.push(name.to_owned()),
                Some(("please", command)) => {
                    let answer = obey(command, &frontend, &fleet).await;
                    answers.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
                }
                _ => panic!("the script says {line:?}"),
            }
        }
        (passed, client.wait().await.unwrap())
    };
    let (passed, status) = tokio::time::timeout(WITHIN, conversation).await.expect("the script ends");
    assert!(status.success(), "{status} after {passed:?}; its words are above. A missing package: tests/run installs it");
    assert_eq!(passed.last().map(String::as_str), Some("everything"), "{passed:?}");
    eventually("nothing runs any more", async || {
        let inflight = frontend.metric("dynamo_frontend_inflight_requests").await;
        seen(inflight == Some(0.0), inflight)
    })
    .await;
}

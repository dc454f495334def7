//! What a call of the request plane costs each end, in CPU time: the caller here, the worker in a process of its own, loopback
//! between them. Wall-clock time says little on a machine that does other things; the scheduler's account of each process does.
//!
//! `cargo bench -p transport --bench request`, with the number of calls in each row as an optional argument.

#![allow(clippy::unwrap_used, reason = "a measurement that fails measures nothing")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use transport::request::{Call, Client, ClientOptions, Request, Server, ServerOptions};

const PATH: &str = "1f/dynamo/backend/generate";
const ITEMS: usize = 5;
const ITEM_BYTES: usize = 200;
/// Calls that run at once.
const AT_ONCE: usize = 8;
const CALLS: usize = 5000;
/// Between the items of an answer that comes token by token.
const STEP: Duration = Duration::from_millis(1);

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let first = arguments.next();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match first.as_deref() {
        Some("serve") => runtime.block_on(serve()),
        calls => runtime.block_on(measure(calls.and_then(|calls| calls.parse().ok()).unwrap_or(CALLS))),
    }
}

/// Answers with a few small items: at once, or one by one where the body begins with 1.
async fn serve() {
    let server = Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap();
    let answer = |request: Request| async move {
        let step = request.body.first() == Some(&1);
        let items = futures_util::stream::iter(0..ITEMS).then(move |_| async move {
            if step {
                tokio::time::sleep(STEP).await;
            }
            Ok(item())
        });
        Ok(items.boxed())
    };
    let _handled = server.handle(PATH, Arc::new(answer)).unwrap();
    println!("{}", server.address());
    // The parent kills it; without one it ends here.
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
}

fn item() -> Bytes {
    let mut item = Vec::new();
    rmp::encode::write_bin(&mut item, &[7; ITEM_BYTES]).unwrap();
    item.into()
}

struct Worker {
    process: Child,
    address: String,
}

impl Worker {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut process = command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { address: format!("{}/{PATH}", address.trim()), process }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn measure(calls: usize) {
    let worker = Worker::start();
    let client = Client::new(ClientOptions::default()).await.unwrap();
    println!("{calls} calls in each row, {AT_ONCE} at once, {ITEMS} items of {ITEM_BYTES} bytes");
    println!("{:>6} ids  {:>12}  {:>14}  {:>14}", "", "items", "caller us/call", "worker us/call");
    for (ids, step) in [(512, false), (512, true), (8192, false), (8192, true)] {
        let body = body(ids, step);
        run(&client, &worker, &body, calls / 10).await;
        let before = (cpu(std::process::id()), cpu(worker.process.id()));
        run(&client, &worker, &body, calls).await;
        let after = (cpu(std::process::id()), cpu(worker.process.id()));
        let each = |before: Duration, after: Duration| (after - before).as_secs_f64() * 1e6 / calls as f64;
        let kind = if step { "one by one" } else { "at once" };
        println!("{ids:>6} ids  {kind:>12}  {:>14.1}  {:>14.1}", each(before.0, after.0), each(before.1, after.1));
    }
}

/// In tasks of the runtime, as a server's requests are.
async fn run(client: &Client, worker: &Worker, body: &Bytes, calls: usize) {
    let mut callers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, address, body) = (client.clone(), worker.address.clone(), body.clone());
        callers.spawn(async move {
            for _ in 0..calls / AT_ONCE {
                let mut responses = client.call(Call::new(address.clone(), body.clone())).await.unwrap();
                for _ in 0..ITEMS {
                    responses.next().await.unwrap().unwrap();
                }
                assert!(responses.next().await.is_none());
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

/// About what so many token ids take in MessagePack.
fn body(ids: usize, step: bool) -> Bytes {
    let mut body = vec![u8::from(step)];
    for id in 0..ids as u32 {
        rmp::encode::write_uint(&mut body, u64::from(id.wrapping_mul(2_654_435_761) >> 15)).unwrap();
    }
    body.into()
}

/// What the scheduler has given all threads of a process.
fn cpu(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let spent = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok());
    Duration::from_nanos(spent.filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum())
}

//! What is left of many calls and many strangers: no connection, no task, no memory. In a binary of its own, so that nothing
//! else allocates, connects or spawns meanwhile.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(unsafe_code, reason = "a global allocator can be written in no other way")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use transport::request::{Call, Client, ClientOptions, Request, Server, ServerOptions};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PATH: &str = "1f/dynamo/backend/generate";
const PATIENCE: Duration = Duration::from_secs(30);

/// Open files, running tasks, live bytes.
#[derive(Clone, Copy, Debug)]
struct Left {
    files: usize,
    tasks: usize,
    bytes: usize,
}

fn left() -> Left {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    Left { files, tasks: Handle::current().metrics().num_alive_tasks(), bytes: LIVE.load(Relaxed) }
}

struct World {
    client: Client,
    server: Server,
    address: String,
}

impl World {
    /// Calls that are read to their end, dropped in the middle, refused, and given up, by turns.
    async fn calls(&self, count: usize) {
        let calls = futures_util::stream::iter(0..count).map(|number| async move {
            let unknown = number % 10 == 7;
            let address = if unknown { format!("{}x", self.address) } else { self.address.clone() };
            let call = self.client.call(Call::new(address, Bytes::from(vec![1; number % 3000])));
            if number % 10 == 5 {
                // Given up at some point on its way.
                let _ = timeout(Duration::from_micros((number % 500) as u64), call).await;
                return;
            }
            let mut responses = match call.await {
                Ok(responses) => responses,
                Err(error) => {
                    assert!(unknown, "{error}");
                    return;
                }
            };
            responses.next().await.unwrap().unwrap();
            if number % 10 != 3 {
                while let Some(item) = responses.next().await {
                    item.unwrap();
                }
            }
        });
        calls.buffer_unordered(50).collect::<Vec<()>>().await;
    }

    /// Half at the one listener, half at the other: silent, talking nonsense, or naming what is unknown.
    async fn strangers(&self, count: usize) {
        let strangers = futures_util::stream::iter(0..count).map(|number| async move {
            let server = self.server.address().to_string();
            let to = if number % 2 == 0 { self.client.address() } else { &server };
            let mut stream = TcpStream::connect(to).await.unwrap();
            let unknown = b"\0\0\0\0\0\0\0\x4b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{\"subject\":\"4461dade-896e-4ca7-9f2c-333e82405507\",\"stream_type\":\"response\"}";
            let words: &[u8] = match number / 2 % 10 {
                0..3 => &[0xfe; 64],
                3..6 => unknown,
                6..9 => return,
                // Silent until it is closed.
                _ => b"",
            };
            let _ = stream.write_all(words).await;
            let _ = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap();
        });
        strangers.buffer_unordered(100).collect::<Vec<()>>().await;
    }

    async fn quiet(&self) -> Left {
        let quiet = async {
            loop {
                let (asked, answered) = (self.client.counters(), self.server.counters());
                if (asked.running, asked.awaited, asked.newcomers, answered.running) == (0, 0, 0, 0) && answered.connections <= 16 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, quiet).await.unwrap();
        left()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_ten_thousand_calls_and_a_thousand_strangers() {
    // A worker of ours says its first word in far less, also on a busy machine.
    let soon = Duration::from_millis(1500);
    let server = Server::bind("127.0.0.1:0", ServerOptions { newcomer_timeout: soon, ..ServerOptions::default() }).await.unwrap();
    let answer = |request: Request| async move {
        let items = futures_util::stream::iter(0..5).map(move |_| Ok(rmp_serde::to_vec(&request.body.len()).unwrap().into()));
        Ok(items.boxed())
    };
    let _handled = server.handle(PATH, Arc::new(answer)).unwrap();
    let client = Client::new(ClientOptions { handshake_timeout: soon, ..ClientOptions::default() }).await.unwrap();
    let address = format!("{}/{PATH}", server.address());
    let world = World { client, server, address };

    let start = left();
    tokio::join!(world.calls(3000), world.strangers(200));
    let before = world.quiet().await;
    tokio::join!(world.calls(10_000), world.strangers(1000));
    let after = world.quiet().await;
    println!("at first {start:?}, warm {before:?}, at last {after:?}");
    assert!(after.files <= before.files + 8 && after.files <= start.files + 32, "{start:?} {before:?} {after:?}");
    assert!(after.tasks <= before.tasks + 8 && after.tasks <= start.tasks + 32, "{start:?} {before:?} {after:?}");
    assert!(after.bytes <= before.bytes + (32 << 10), "{before:?} {after:?}");

    let World { client, server, .. } = world;
    client.stop().await;
    drop(client);
    assert_eq!(server.drain(PATIENCE).await, 0);
    // Of a task that is over, the last bits go a moment later.
    let gone = async {
        while left().tasks > 0 || left().files >= start.files {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{start:?} {:?}", left()));
}

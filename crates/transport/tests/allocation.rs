//! What a hostile peer can make this process allocate, measured by the allocator itself: in a binary of its own, so that
//! nothing else allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(unsafe_code, reason = "a global allocator can be written in no other way")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use transport::nats::{Nats, NatsOptions};
use transport::plane::{PlanePublisher, PlaneSocket, PublisherOptions, SubscriptionOptions, Subscriptions};
use transport::zmtp::{Endpoint, Options, Pub, Router, Sub, SubEvent};
use wire::discovery::{ChannelTransport, EndpointId};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

impl Counting {
    fn add(size: usize) {
        let live = LIVE.fetch_add(size, Relaxed) + size;
        PEAK.fetch_max(live, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
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

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// One test at a time: what others allocate would count.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// By how many bytes `work` raised what is allocated, at its worst.
async fn peak_of(work: impl Future<Output = ()>) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    timeout(PATIENCE, work).await.unwrap();
    PEAK.load(Relaxed).saturating_sub(before)
}

fn hello(kind: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 1);
    bytes[12..16].copy_from_slice(b"NULL");
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(u8::try_from(kind.len()).unwrap());
    body.extend_from_slice(kind.as_bytes());
    bytes.extend([4, u8::try_from(body.len()).unwrap()]);
    bytes.extend(body);
    bytes
}

fn header(flags: u8, claim: u64) -> Vec<u8> {
    [&[flags | 2][..], &claim.to_be_bytes()].concat()
}

async fn say(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

fn port_of(endpoint: &Endpoint) -> u16 {
    match endpoint {
        Endpoint::Tcp { port, .. } => *port,
        Endpoint::Ipc(_) => unreachable!("only TCP is bound here"),
    }
}

fn loopback(port: u16) -> Endpoint {
    Endpoint::Tcp { host: "127.0.0.1".into(), port }
}

/// Reads until the other side hangs up.
async fn hung_up(mut stream: TcpStream) {
    let mut waste = [0; 256];
    while !matches!(stream.read(&mut waste).await, Ok(0) | Err(_)) {}
}

#[tokio::test]
async fn a_claimed_length_costs_nothing_and_data_costs_what_arrives() {
    let _alone = ALONE.lock().await;
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let (publisher, router) = (port_of(&publisher.endpoint()), port_of(&router.endpoint()));

    let refused = peak_of(async {
        for claim in [1 << 27, 1 << 40, 1 << 47, 1 << 61, 1 << 62, u64::MAX] {
            for flags in [0, 1, 4] {
                for (port, kind) in [(publisher, "SUB"), (router, "DEALER")] {
                    hung_up(say(port, &[hello(kind), header(flags, claim)].concat()).await).await;
                    hung_up(say(port, &[hello(kind)[..64].to_vec(), header(flags, claim)].concat()).await).await;
                }
            }
        }
    })
    .await;
    assert!(refused < MIB, "{refused} bytes for refused claims");

    let mut waiting = Vec::new();
    let believed = peak_of(async {
        for _ in 0..20 {
            // Within the limit of a message, and then nothing but its first byte.
            let mut stream = say(router, &[hello("DEALER"), header(0, 60 << 20), vec![0]].concat()).await;
            // Its greeting and READY: by now the header has most likely been read as well.
            stream.read_exact(&mut [0; 80]).await.unwrap();
            waiting.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    })
    .await;
    assert!(believed < 3 * MIB, "{believed} bytes for 20 claims of 60 MiB");
    drop(waiting);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut sub = Sub::connect(loopback(listener.local_addr().unwrap().port()), b"", Options::default());
    let whole = vec![b'x'; 16 * MIB];
    let received = peak_of(async {
        let (mut peer, _) = listener.accept().await.unwrap();
        peer.write_all(&[hello("PUB"), header(0, 16 << 20)].concat()).await.unwrap();
        let send = async { peer.write_all(&whole).await.unwrap() };
        let receive = async {
            loop {
                if let SubEvent::Message(frames) = sub.next().await {
                    assert_eq!(frames[0].len(), whole.len());
                    return;
                }
            }
        };
        tokio::join!(send, receive);
    })
    .await;
    // Growing by doubling, with the old and the new buffer alive for a moment.
    assert!((16 * MIB..56 * MIB).contains(&received), "{received} bytes for a message of 16 MiB");
}

/// A publisher with 4 MiB of room for each who does not take what it says.
async fn publisher(socket: PlaneSocket) -> PlanePublisher {
    let scope = EndpointId::new("n", "c", "e").scope();
    let options = PublisherOptions { queue_bytes: 4 * MIB, ..PublisherOptions::default() };
    PlanePublisher::open(socket, scope, "kv-events", 1, options).await.unwrap()
}

/// Publishes 64 MiB, letting others work in between.
async fn flood(publisher: &PlanePublisher) {
    for _ in 0..1024 {
        publisher.publish(Bytes::from(vec![0; 64 << 10]));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_does_not_read_costs_a_publisher_and_a_subscriber_their_bounds() {
    let _alone = ALONE.lock().await;
    let zmq = publisher(PlaneSocket::loopback()).await;
    let ChannelTransport::Zmq { endpoint } = &zmq.channel().transport else { unreachable!("a ZMQ channel") };
    let mut subscribe = hello("SUB");
    subscribe.extend(b"\x04\x13\x09SUBSCRIBEkv-events");
    let stalled = say(port_of(&endpoint.parse().unwrap()), &subscribe).await;
    let subscribed = async {
        while zmq.subscribers() != Some(1) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, subscribed).await.unwrap();
    let cost = peak_of(flood(&zmq)).await;
    assert!(cost < 6 * MIB && zmq.counters().dropped > 0, "{cost} bytes for a subscriber that stalls");
    drop(stalled);

    // Nobody listens there.
    let nats = publisher(PlaneSocket::Nats(Nats::connect("nats://127.0.0.1:1", NatsOptions::default()).unwrap())).await;
    let cost = peak_of(flood(&nats)).await;
    assert!(cost < 6 * MIB && nats.counters().dropped > 0, "{cost} bytes for a server that is away");
    drop(nats);

    let options = SubscriptionOptions { queue_bytes: 4 * MIB, ..SubscriptionOptions::default() };
    let subscriptions = Subscriptions::new(|| unreachable!("no NATS here"), options);
    let mut unread = subscriptions.subscribe(zmq.channel());
    timeout(PATIENCE, unread.next()).await.unwrap();
    let cost = peak_of(flood(&zmq)).await;
    assert!(cost < 12 * MIB, "{cost} bytes for both ends of a subscription whose reader stalls");
}

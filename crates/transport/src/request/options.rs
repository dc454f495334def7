//! What the two ends may spend: sizes, times and counts, each with its unit and default.

use std::time::Duration;

/// Options of a [`Client`](super::Client).
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port` the call-home listener binds (`127.0.0.1:0`: loopback, any port). Workers of other hosts reach it only
    /// where this is an address they can reach.
    pub bind: String,
    /// Host told to workers; the bound address where none is given. Needed where `bind` names all interfaces.
    pub advertised_host: Option<String>,
    /// Bound on a connection to a worker, name look-up included (2 s).
    pub connect_timeout: Duration,
    /// Bound on a ping, connection included (1 s).
    pub ping_timeout: Duration,
    /// Bound from the request's turn on its connection to its acknowledgement (5 s).
    pub ack_timeout: Duration,
    /// Bound from the acknowledgement to the connection the worker opens to us (5 s). A worker that cannot read a body
    /// acknowledges it and stays silent.
    pub call_home_timeout: Duration,
    /// Longest silence of a worker before its answer and within it (30 s). A call may set its own.
    pub item_timeout: Duration,
    /// Largest item that is returned whole, in bytes (64 MiB).
    pub max_item_bytes: usize,
    /// Largest item that is returned in pieces, in bytes (1 GiB).
    pub max_pieced_item_bytes: usize,
    /// Largest request body, in bytes (32 MiB less what is put around it: what 1.6.1 accepts).
    pub max_body_bytes: usize,
    /// Calls that run at once (8192); further ones fail at once.
    pub max_calls: usize,
    /// Connections to one worker (8). A new one is opened while all are waiting for an acknowledgement.
    pub connections_per_worker: usize,
    /// Connections to all workers together (4096).
    pub max_connections: usize,
    /// Requests that wait for their acknowledgement on one connection (1024).
    pub max_unacknowledged: usize,
    /// A connection to a worker that was not used for this long is closed (60 s).
    pub idle_timeout: Duration,
    /// Connections to the call-home listener that have not yet named their call (256); beyond it the oldest goes.
    pub max_newcomers: usize,
    /// How long such a connection may take to name its call (5 s).
    pub handshake_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            bind: "127.0.0.1:0".to_owned(),
            advertised_host: None,
            connect_timeout: Duration::from_secs(2),
            ping_timeout: Duration::from_secs(1),
            ack_timeout: Duration::from_secs(5),
            call_home_timeout: Duration::from_secs(5),
            item_timeout: Duration::from_secs(30),
            max_item_bytes: 64 << 20,
            max_pieced_item_bytes: 1 << 30,
            max_body_bytes: (32 << 20) - (256 << 10),
            max_calls: 8192,
            connections_per_worker: 8,
            max_connections: 4096,
            max_unacknowledged: 1024,
            idle_timeout: Duration::from_secs(60),
            max_newcomers: 256,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// Options of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Host told to callers; the bound address where none is given. Needed where all interfaces are bound.
    pub advertised_host: Option<String>,
    /// Largest request frame, in bytes (32 MiB, as 1.6.1). Of unknown endpoints nothing is kept, whatever the size.
    pub max_frame_bytes: usize,
    /// Bytes that bodies of over 64 KiB may hold together, while they arrive and while they are handled (512 MiB); a request
    /// beyond it is refused in the acknowledgement.
    pub max_body_bytes: usize,
    /// How long a frame may take from its first to its last byte, and acknowledgements to be taken (30 s).
    pub frame_timeout: Duration,
    /// Open connections that have sent at least one frame for an endpoint that is here (1024). Each may hold 136 KiB of a
    /// frame that is not counted as a large body.
    pub max_connections: usize,
    /// How long one of them may be quiet before it is closed (5 min), so that those that are not used any more keep nobody out.
    pub idle_timeout: Duration,
    /// Connections that have not (256); beyond it the oldest goes. Each may hold 72 KiB.
    pub max_newcomers: usize,
    /// How long such a connection is kept (10 s).
    pub newcomer_timeout: Duration,
    /// Calls that run at once (4096); further ones are refused in the acknowledgement.
    pub max_running: usize,
    /// Bound on the connection to a caller (2 s).
    pub connect_timeout: Duration,
    /// A caller that takes no byte for this long while some wait for it loses its call (60 s). Until then it costs one
    /// item, 64 KiB, and what the kernel buffers for a socket.
    pub stalled_timeout: Duration,
    /// How long a finished stream waits for the caller to close it (10 s, as 1.6.1).
    pub close_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            advertised_host: None,
            max_frame_bytes: 32 << 20,
            max_body_bytes: 512 << 20,
            frame_timeout: Duration::from_secs(30),
            max_connections: 1024,
            idle_timeout: Duration::from_secs(300),
            max_newcomers: 256,
            newcomer_timeout: Duration::from_secs(10),
            max_running: 4096,
            connect_timeout: Duration::from_secs(2),
            stalled_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(10),
        }
    }
}

//! What a socket may spend: sizes, times and counts, each with its unit and default.

use std::time::Duration;

use bytes::Bytes;

/// What one connection may make us hold while it sends. Judged on headers, before anything is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest frame, in bytes (64 MiB).
    pub max_frame_bytes: usize,
    /// Largest sum of the frames of one message, in bytes (64 MiB).
    pub max_message_bytes: usize,
    /// Most frames of one message (32).
    pub max_frames: usize,
    /// Largest command, in bytes (8 KiB). SUBSCRIBE carries a topic, READY the peer's metadata.
    pub max_command_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_frame_bytes: 64 << 20, max_message_bytes: 64 << 20, max_frames: 32, max_command_bytes: 8 << 10 }
    }
}

/// Options of any socket here; each kind reads the ones that concern it.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a connection may make us hold while it sends.
    pub limits: Limits,
    /// Identity told to the peer; empty (the default) lets a ROUTER make one up. At most 255 bytes are sent.
    pub identity: Bytes,
    /// Bound on a name look-up, and on each address tried (2 s).
    pub connect_timeout: Duration,
    /// Bound from an open connection to the end of the ZMTP handshake (5 s).
    pub handshake_timeout: Duration,
    /// A peer that greets 3.1 or later is sent a PING when nothing was heard from it for this long (10 s).
    pub heartbeat_idle: Duration,
    /// A peer that then stays silent for this long is disconnected (10 s).
    pub heartbeat_timeout: Duration,
    /// A SUB counts as connected only once the publisher is known to have its subscription: two PINGs sent behind it, one after
    /// the other, were answered (off). What was published before that is passed over. A peer of ZMTP 3.0 has no PING, and one that does not answer
    /// within `handshake_timeout` is taken as connected.
    pub confirm_subscription: bool,
    /// A SUB that has read all there was looks again after this long (none). What arrives meanwhile wakes nobody, so that
    /// many messages that nobody is in a hurry for cost one look; so does the end of the connection.
    pub rest: Option<Duration>,
    /// TCP keepalive starts after this idle time (15 s); a host that answers none is gone after twice as long again.
    pub tcp_keepalive_idle: Duration,
    /// First delay before connecting again (50 ms); it doubles, with jitter, up to `reconnect_max`.
    pub reconnect_min: Duration,
    /// Longest delay before connecting again (2 s). Tries never end.
    pub reconnect_max: Duration,
    /// Bound, in bytes, of each queue between a socket's tasks and its user (64 MiB): what SUB holds unread, what
    /// PUB and ROUTER hold for one peer, what ROUTER holds unread. One message always fits an empty queue.
    pub queue_bytes: usize,
    /// How long a ROUTER's `send` waits for room in a peer's queue (5 s).
    pub send_timeout: Duration,
    /// Most connections of a bound socket (1024); further ones are closed after their handshake.
    pub max_connections: usize,
    /// Most subscriptions of one peer of a PUB (1024).
    pub max_subscriptions: usize,
    /// Most bytes of the topics one peer of a PUB subscribes to (256 KiB).
    pub max_subscription_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            identity: Bytes::new(),
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(5),
            heartbeat_idle: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(10),
            confirm_subscription: false,
            rest: None,
            tcp_keepalive_idle: Duration::from_secs(15),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            queue_bytes: 64 << 20,
            send_timeout: Duration::from_secs(5),
            max_connections: 1024,
            max_subscriptions: 1024,
            max_subscription_bytes: 256 << 10,
        }
    }
}

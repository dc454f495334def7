//! Addresses as ZeroMQ users write them: `tcp://host:port` and `ipc:///path`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Longest socket path the kernel takes, in bytes (`sun_path` without its closing zero).
const MAX_IPC_PATH_BYTES: usize = 107;

/// Where a socket connects to or listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `tcp://host:port`. The host is a DNS name or an address (IPv6 in brackets in text, without them here); `*`
    /// means all interfaces and can only be bound. Port 0 (or `*` in text) means a free one and can only be bound.
    Tcp {
        /// DNS name, IPv4 or IPv6 address, or `*`.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// `ipc:///path`: a Unix socket.
    Ipc(PathBuf),
}

/// Why a text is not an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not an endpoint: {reason}; expected tcp://host:port or ipc:///path")]
pub struct EndpointError {
    text: String,
    reason: &'static str,
}

impl Endpoint {
    /// Whether this names every interface (`*`, `0.0.0.0`, `::`) rather than one host.
    pub fn is_wildcard(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => matches!(host.as_str(), "*" | "0.0.0.0" | "::"),
            Self::Ipc(_) => false,
        }
    }

    /// The same endpoint with a wildcard host replaced by `host`: where a peer that listens on all interfaces of
    /// `host` is reached. Anything else is returned unchanged.
    pub fn reached_at(self, host: &str) -> Self {
        if !self.is_wildcard() {
            return self;
        }
        match self {
            Self::Tcp { port, .. } => Self::Tcp { host: unbracketed(host).to_owned(), port },
            Self::Ipc(path) => Self::Ipc(path),
        }
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |reason| EndpointError { text: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path {
                "" | "*" => Err(refuse("the socket path is missing")),
                path if path.len() > MAX_IPC_PATH_BYTES => Err(refuse("the socket path is over 107 bytes")),
                path if path.contains('\0') => Err(refuse("the socket path contains a zero byte")),
                path => Ok(Self::Ipc(PathBuf::from(path))),
            };
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(refuse("unknown transport"));
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(|| refuse("the port is missing"))?;
        let port = match port {
            "*" => 0,
            port if port.bytes().all(|b| b.is_ascii_digit()) => {
                port.parse().map_err(|_| refuse("the port is not a number from 0 to 65535"))?
            }
            _ => return Err(refuse("the port is not a number from 0 to 65535")),
        };
        let bare = unbracketed(host);
        if bare.is_empty() {
            return Err(refuse("the host is missing"));
        }
        if bare.len() == host.len() && host.contains(':') {
            return Err(refuse("an IPv6 address needs brackets"));
        }
        if !bare.chars().all(|c| c.is_ascii_alphanumeric() || "*.-_:%".contains(c)) {
            return Err(refuse("the host contains a character no host name has"));
        }
        Ok(Self::Tcp { host: bare.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_agree_both_ways() {
        for text in ["tcp://10.0.0.7:5557", "tcp://gpu-1.pool.svc:0", "tcp://*:5557", "tcp://[::1]:80", "ipc:///run/kv.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("tcp://*:*".parse::<Endpoint>().unwrap().to_string(), "tcp://*:0");
    }

    #[test]
    fn odd_text_is_refused_with_its_reason() {
        for text in [
            "",
            "tcp://",
            "tcp://host",
            "tcp://:1",
            "tcp://host:+1",
            "tcp://host:65536",
            "tcp://::1:80",
            "tcp://a b:1",
            "tcp://a/b:1",
            "udp://host:1",
            "inproc://x",
            "ipc://",
            "ipc://*",
            "host:5557",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("expected tcp://host:port"), "{error}");
        }
        assert!(format!("ipc:///{}", "x".repeat(107)).parse::<Endpoint>().is_err());
    }

    #[test]
    fn a_wildcard_answer_is_reached_at_the_workers_host() {
        let all: Endpoint = "tcp://*:5557".parse().unwrap();
        assert_eq!(all.reached_at("gpu1").to_string(), "tcp://gpu1:5557");
        let six: Endpoint = "tcp://[::]:5557".parse().unwrap();
        assert_eq!(six.reached_at("[fd00::1]").to_string(), "tcp://[fd00::1]:5557");
        let one: Endpoint = "tcp://gpu2:5557".parse().unwrap();
        assert_eq!(one.clone().reached_at("gpu1"), one);
    }
}

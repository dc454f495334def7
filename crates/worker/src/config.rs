//! What a process needs to take part in the planes, given directly or by Dynamo's environment variables.

use std::{env, path::PathBuf};

use transport::{
    discovery::{Backend, EtcdConfig, FOLDER, MemStore, Options},
    hosts,
    nats::{DEFAULT_URL, NatsAuth, NatsOptions},
    plane::{PlaneKind, PlaneSocket},
};

/// The namespace unless told.
const NAMESPACE: &str = "dynamo";
/// What is read from the environment.
const VARIABLES: [&str; 19] = [
    "DYN_DISCOVERY_BACKEND",
    "DYN_EVENT_PLANE",
    "DYN_EVENT_PLANE_HOST",
    "DYN_FILE_KV",
    "DYN_NAMESPACE",
    "DYN_REQUEST_PLANE",
    "DYN_TCP_RPC_HOST",
    "DYN_TCP_RPC_PORT",
    "ETCD_AUTH_CA",
    "ETCD_AUTH_CLIENT_CERT",
    "ETCD_AUTH_CLIENT_KEY",
    "ETCD_AUTH_PASSWORD",
    "ETCD_AUTH_USERNAME",
    "ETCD_ENDPOINTS",
    "NATS_AUTH_CREDENTIALS_FILE",
    "NATS_AUTH_PASSWORD",
    "NATS_AUTH_TOKEN",
    "NATS_AUTH_USERNAME",
    "NATS_SERVER",
];

/// A process on the planes.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Where records are kept.
    pub discovery: Backend,
    /// Times of that.
    pub discovery_options: Options,
    /// What carries the events we publish.
    pub event_plane: PlaneKind,
    /// What carries requests to us; answers go back over TCP either way.
    pub request_plane: RequestPlane,
    /// The NATS server, dialled only where something needs it.
    pub nats_server: String,
    /// How it is spoken to.
    pub nats: NatsOptions,
    /// Host that subscribers reach our event sockets at. Loopback, for this host alone, where none is given; else all
    /// interfaces are bound.
    pub event_host: Option<String>,
    /// Host that callers reach our request plane at; likewise.
    pub request_host: Option<String>,
    /// Port of the request plane; 0: any free one.
    pub request_port: u16,
    /// The namespace meant where none is named.
    pub namespace: String,
}

/// What carries requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestPlane {
    /// Connections of the callers' to our port.
    #[default]
    Tcp,
    /// A subject for each endpoint.
    Nats,
}

/// An invalid variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value}: {allowed}")]
pub struct ConfigError {
    variable: &'static str,
    value: String,
    allowed: &'static str,
}

impl RuntimeConfig {
    /// On this host alone: the given discovery, events over ZMQ, everything on loopback.
    pub fn local(discovery: Backend) -> Self {
        Self {
            discovery,
            discovery_options: Options::default(),
            event_plane: PlaneKind::Zmq,
            request_plane: RequestPlane::Tcp,
            nats_server: DEFAULT_URL.to_owned(),
            nats: NatsOptions::default(),
            event_host: None,
            request_host: None,
            request_port: 0,
            namespace: NAMESPACE.to_owned(),
        }
    }

    /// From the process's environment; see [`RuntimeConfig::from_lookup`].
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::check_env()?;
        Self::from_lookup(|name| env::var(name).ok())
    }

    /// Refuses a variable whose bytes are no text: it would count as one that is not set.
    pub fn check_env() -> Result<(), ConfigError> {
        let refused = VARIABLES.into_iter().find(|name| matches!(env::var(name), Err(env::VarError::NotUnicode(_))));
        refused.map_or(Ok(()), |variable| Err(ConfigError { variable, value: "...".to_owned(), allowed: "is not UTF-8" }))
    }

    /// From `DYN_DISCOVERY_BACKEND` (`mem`, `file`, `etcd`; unset: etcd where `ETCD_ENDPOINTS` is set, else file), `DYN_FILE_KV`,
    /// `ETCD_*`, `DYN_EVENT_PLANE` (`nats`, `zmq`; unset: nats with etcd, else zmq), `DYN_REQUEST_PLANE` (`tcp`, `nats`; unset: tcp),
    /// `NATS_SERVER`, `NATS_AUTH_*`, `DYN_EVENT_PLANE_HOST`, `DYN_TCP_RPC_HOST`, `DYN_TCP_RPC_PORT`, `DYN_NAMESPACE`. A variable that is empty is not set.
    pub fn from_lookup(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let wrong = |variable, value: &str, allowed| ConfigError { variable, value: value.to_owned(), allowed };
        let file = || Backend::File { root: set("DYN_FILE_KV").map_or_else(|| env::temp_dir().join(FOLDER), PathBuf::from) };
        let etcd = || {
            let config = EtcdConfig::from_variables(set);
            let refused =
                |_| wrong("ETCD_ENDPOINTS", &without_users(&config.endpoints), "expected http://HOST:PORT, several separated by commas");
            config.check().map_err(refused)?;
            Ok(Backend::Etcd(config))
        };
        let backend = set("DYN_DISCOVERY_BACKEND");
        let discovery = match backend.as_deref() {
            Some("mem") => Backend::Mem(MemStore::default()),
            Some("file") => file(),
            Some("etcd") => etcd()?,
            Some("kubernetes") => {
                return Err(wrong("DYN_DISCOVERY_BACKEND", "kubernetes", "is not offered yet; use etcd, file or mem"));
            }
            Some(other) => return Err(wrong("DYN_DISCOVERY_BACKEND", other, "allowed are mem, file and etcd")),
            None if set("ETCD_ENDPOINTS").is_some() => etcd()?,
            None => file(),
        };
        let plane = set("DYN_EVENT_PLANE");
        let event_plane = match (plane.as_deref(), &discovery) {
            (Some(word), _) => PlaneKind::named(word).ok_or_else(|| wrong("DYN_EVENT_PLANE", word, "allowed are nats and zmq"))?,
            (None, Backend::Etcd(_)) => PlaneKind::Nats,
            (None, Backend::Mem(_) | Backend::File { .. }) => PlaneKind::Zmq,
        };
        let request_plane = match set("DYN_REQUEST_PLANE").as_deref() {
            Some("tcp") | None => RequestPlane::Tcp,
            Some("nats") => RequestPlane::Nats,
            Some(other) => return Err(wrong("DYN_REQUEST_PLANE", other, "allowed are tcp and nats")),
        };
        let request_port = match set("DYN_TCP_RPC_PORT") {
            Some(text) => text.parse().map_err(|_| wrong("DYN_TCP_RPC_PORT", &text, "is not a port number"))?,
            None => 0,
        };
        Ok(Self {
            event_plane,
            request_plane,
            nats_server: set("NATS_SERVER").unwrap_or_else(|| DEFAULT_URL.to_owned()),
            nats: NatsOptions { auth: NatsAuth::from_lookup(set), ..NatsOptions::default() },
            event_host: set("DYN_EVENT_PLANE_HOST").map(|text| host("DYN_EVENT_PLANE_HOST", text)).transpose()?,
            request_host: set("DYN_TCP_RPC_HOST").map(|text| host("DYN_TCP_RPC_HOST", text)).transpose()?,
            request_port,
            namespace: set("DYN_NAMESPACE").unwrap_or_else(|| NAMESPACE.to_owned()),
            ..Self::local(discovery)
        })
    }

    /// The ZMQ socket of a publisher.
    pub(crate) fn event_socket(&self) -> PlaneSocket {
        PlaneSocket::zmq(self.event_host.as_deref())
    }

    /// Where the request plane listens.
    pub(crate) fn request_address(&self) -> String {
        hosts::address(&hosts::interface_for(self.request_host.as_deref()), self.request_port)
    }
}

fn host(variable: &'static str, text: String) -> Result<String, ConfigError> {
    match hosts::named(&text) {
        Some(_) => Ok(text),
        None => Err(ConfigError { variable, value: text, allowed: "is not a host name or address without a port" }),
    }
}

/// Addresses as they may be shown.
fn without_users(addresses: &[String]) -> String {
    let shown = |address: &String| address.rsplit_once('@').map_or(address.clone(), |(_, host)| host.to_owned());
    addresses.iter().map(shown).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<RuntimeConfig, String> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        RuntimeConfig::from_lookup(lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn planes_follow_the_variables_and_their_defaults() {
        let file = of(&[("DYN_FILE_KV", "/x"), ("DYN_EVENT_PLANE", "")]).unwrap();
        assert!(matches!(&file.discovery, Backend::File { root } if root == std::path::Path::new("/x")));
        assert_eq!((file.event_plane, &*file.namespace, &*file.nats_server), (PlaneKind::Zmq, "dynamo", DEFAULT_URL));
        let etcd = of(&[("ETCD_ENDPOINTS", "http://e:1,http://f:2"), ("DYN_NAMESPACE", "blue")]).unwrap();
        assert!(matches!(&etcd.discovery, Backend::Etcd(etcd) if etcd.endpoints.len() == 2));
        assert_eq!((etcd.event_plane, &*etcd.namespace), (PlaneKind::Nats, "blue"));
        assert_eq!(of(&[("ETCD_ENDPOINTS", "e"), ("DYN_EVENT_PLANE", "zmq")]).unwrap().event_plane, PlaneKind::Zmq);
        let refused = of(&[("DYN_EVENT_PLANE", "kafka")]).unwrap_err();
        assert_eq!(refused, "DYN_EVENT_PLANE=kafka: allowed are nats and zmq");
        assert_eq!(
            (etcd.request_plane, of(&[("DYN_REQUEST_PLANE", "nats")]).unwrap().request_plane),
            (RequestPlane::Tcp, RequestPlane::Nats)
        );
        assert_eq!(of(&[("DYN_REQUEST_PLANE", "http")]).unwrap_err(), "DYN_REQUEST_PLANE=http: allowed are tcp and nats");
        assert!(of(&[("DYN_DISCOVERY_BACKEND", "zookeeper")]).unwrap_err().contains("mem, file and etcd"));
        assert!(of(&[("DYN_TCP_RPC_PORT", "70000")]).unwrap_err().contains("is not a port number"));
        for name in ["DYN_EVENT_PLANE_HOST", "DYN_TCP_RPC_HOST"] {
            assert_eq!(of(&[(name, "ju nk")]).unwrap_err(), format!("{name}=ju nk: is not a host name or address without a port"));
            assert!(of(&[(name, "pod-7:1")]).is_err());
            assert!(["pod-7.ns", "10.0.0.1", "[fd00::1]", "fd00::1"].iter().all(|host| of(&[(name, host)]).is_ok()));
        }
        assert!(of(&[("ETCD_ENDPOINTS", "ju nk")]).unwrap_err().starts_with("ETCD_ENDPOINTS=ju nk: expected http://HOST:PORT"));
        let secret = of(&[("ETCD_ENDPOINTS", "http://u:secret@e:1")]).unwrap_err();
        assert!(!secret.contains("secret") && secret.contains("=e:1: "), "{secret}");
    }

    #[test]
    fn sockets_are_on_loopback_unless_others_are_to_reach_them() {
        let local = RuntimeConfig::local(Backend::Mem(MemStore::default()));
        assert_eq!(local.request_address(), "127.0.0.1:0");
        let told = RuntimeConfig { request_host: Some("pod-7".into()), request_port: 7000, ..local.clone() };
        assert_eq!(told.request_address(), "0.0.0.0:7000");
        let six = RuntimeConfig { request_host: Some("[fd00::1]".into()), ..local.clone() };
        assert_eq!(six.request_address(), "[::]:0");
        let own = RuntimeConfig { request_host: Some("127.0.0.2".into()), ..local };
        assert_eq!(own.request_address(), "127.0.0.2:0");
    }
}

//! The command-line flags by which a program takes part in the planes: Dynamo's variables, and flags that win over them.

use clap::Args;
use transport::discovery::Backend;

use crate::config::RuntimeConfig;

// No doc comment: clap would show it in place of the program's own.
#[expect(missing_docs, reason = "see above; each flag says what it is")]
#[derive(Clone, Debug, Default, Args)]
pub struct PlaneFlags {
    /// Namespace to register in (dynamo). DYN_NAMESPACE.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Where to register: file or etcd; etcd where its endpoints are given, else file. DYN_DISCOVERY_BACKEND.
    #[arg(long, value_name = "BACKEND")]
    pub discovery_backend: Option<String>,
    /// The folder of file discovery. DYN_FILE_KV.
    #[arg(long, value_name = "DIR")]
    pub file_kv: Option<String>,
    /// Members of etcd, separated by commas. ETCD_ENDPOINTS.
    #[arg(long, value_name = "URLS")]
    pub etcd_endpoints: Option<String>,
    /// What carries the events: nats or zmq; nats where discovery is etcd, else zmq. DYN_EVENT_PLANE.
    #[arg(long, value_name = "PLANE")]
    pub event_plane: Option<String>,
    /// What carries requests to this process: tcp or nats (tcp). DYN_REQUEST_PLANE.
    #[arg(long, value_name = "PLANE")]
    pub request_plane: Option<String>,
    /// The NATS server (nats://localhost:4222). NATS_SERVER.
    #[arg(long, value_name = "URL")]
    pub nats_server: Option<String>,
    /// Host at which frontends reach this process's event sockets; loopback if not given. DYN_EVENT_PLANE_HOST.
    #[arg(long, value_name = "HOST")]
    pub event_plane_host: Option<String>,
    /// Host at which frontends send this process requests; loopback if not given. DYN_TCP_RPC_HOST.
    #[arg(long, value_name = "HOST")]
    pub tcp_rpc_host: Option<String>,
    /// Port of the same; 0: any free one. DYN_TCP_RPC_PORT.
    #[arg(long, value_name = "PORT")]
    pub tcp_rpc_port: Option<String>,
}

/// An invalid flag or variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {allowed}")]
pub struct FlagError {
    /// The flag or the variable, as it was given.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it could be.
    pub allowed: String,
}

impl PlaneFlags {
    /// The planes. Flags win over `variable`. What is wrong is named as it was given.
    pub fn config(&self, variable: impl Fn(&str) -> Option<String>) -> Result<RuntimeConfig, FlagError> {
        let by_flag = [
            ("DYN_NAMESPACE", "--namespace", &self.namespace),
            ("DYN_DISCOVERY_BACKEND", "--discovery-backend", &self.discovery_backend),
            ("DYN_FILE_KV", "--file-kv", &self.file_kv),
            ("ETCD_ENDPOINTS", "--etcd-endpoints", &self.etcd_endpoints),
            ("DYN_EVENT_PLANE", "--event-plane", &self.event_plane),
            ("DYN_REQUEST_PLANE", "--request-plane", &self.request_plane),
            ("NATS_SERVER", "--nats-server", &self.nats_server),
            ("DYN_EVENT_PLANE_HOST", "--event-plane-host", &self.event_plane_host),
            ("DYN_TCP_RPC_HOST", "--tcp-rpc-host", &self.tcp_rpc_host),
            ("DYN_TCP_RPC_PORT", "--tcp-rpc-port", &self.tcp_rpc_port),
        ];
        let flag = |name: &str| by_flag.iter().find(|(known, _, text)| *known == name && text.is_some());
        let lookup = |name: &str| flag(name).and_then(|(.., text)| (*text).clone()).or_else(|| variable(name));
        let wrong = |name: &str, value: &str, allowed: &str| FlagError {
            name: flag(name).map_or(name, |(_, flag, _)| flag).to_owned(),
            value: value.to_owned(),
            allowed: allowed.to_owned(),
        };
        let config = RuntimeConfig::from_lookup(lookup).map_err(|error| {
            let text = error.to_string();
            let (name, rest) = text.split_once('=').unwrap_or((&text, ""));
            let (value, allowed) = rest.split_once(": ").unwrap_or(("", rest));
            wrong(name, value, allowed)
        })?;
        if matches!(config.discovery, Backend::Mem(_)) {
            return Err(wrong("DYN_DISCOVERY_BACKEND", "mem", "is within one process, and frontends are others; use file or etcd"));
        }
        Ok(config)
    }
}

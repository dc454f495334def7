//! Endpoints that can be called.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Bucket, Key, Scope};

/// An endpoint by its names. One name may be served by many instances.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointId {
    /// The namespace.
    pub namespace: String,
    /// The component in it.
    pub component: String,
    /// The endpoint of that. Documents call it `name`.
    #[serde(rename = "name")]
    pub endpoint: String,
}

impl EndpointId {
    /// Of its three names.
    pub fn new(namespace: impl Into<String>, component: impl Into<String>, endpoint: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), component: component.into(), endpoint: endpoint.into() }
    }

    /// Another endpoint of the same component.
    pub fn sibling(&self, endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), ..self.clone() }
    }

    /// The scope of its events.
    pub fn scope(&self) -> Scope {
        Scope::endpoint(self)
    }

    /// The prefix of its NATS subjects.
    pub fn subject_prefix(&self) -> String {
        self.scope().subject_prefix()
    }

    /// `<ns>/<component>/<endpoint>/<instance hex>`, as in keys.
    pub(crate) fn instance_path(&self, instance_id: u64) -> String {
        format!("{}/{}/{}/{instance_id:x}", self.namespace, self.component, self.endpoint)
    }

    /// `<instance hex>/<ns>/<component>/<endpoint>`: the path of a request frame, and the end of a TCP transport.
    pub fn request_path(&self, instance_id: u64) -> String {
        format!("{instance_id:x}/{}/{}/{}", self.namespace, self.component, self.endpoint)
    }

    /// The names and the instance in a request path.
    pub fn of_request_path(path: &str) -> Option<(Self, u64)> {
        let mut parts = path.splitn(4, '/');
        let instance_id = u64::from_str_radix(parts.next()?, 16).ok()?;
        let id = Self::new(parts.next()?, parts.next()?, parts.next()?);
        let whole = [&id.namespace, &id.component, &id.endpoint].iter().all(|name| !name.is_empty());
        whole.then_some((id, instance_id))
    }

    /// `<ns>_<component>.<endpoint>-<instance hex>`: the NATS subject of its requests. In the names, what has a meaning in subjects is
    /// written `_`, and 1.6.1 writes the first two in lower case.
    pub fn request_subject(&self, instance_id: u64) -> String {
        let plain = |name: &str| -> String {
            name.chars().map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }).collect()
        };
        let service = format!("{}_{}", plain(&self.namespace), plain(&self.component)).to_ascii_lowercase();
        format!("{service}.{}-{instance_id:x}", plain(&self.endpoint))
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.namespace, self.component, self.endpoint)
    }
}

/// How requests reach an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// `host:port/<request path>`.
    #[serde(rename = "tcp")]
    Tcp(String),
    /// A NATS subject; the answer comes over TCP.
    #[serde(rename = "nats_tcp")]
    NatsTcp(String),
    /// A kind not known here.
    #[serde(untagged)]
    Other(Value),
}

impl Transport {
    /// The transport of an instance that listens on `address` (`host:port`).
    pub fn tcp(address: &str, id: &EndpointId, instance_id: u64) -> Self {
        Self::Tcp(format!("{address}/{}", id.request_path(instance_id)))
    }

    /// The transport of an instance that is asked over NATS.
    pub fn nats_tcp(id: &EndpointId, instance_id: u64) -> Self {
        Self::NatsTcp(id.request_subject(instance_id))
    }

    /// Address (`host:port`) and request path, if it is TCP.
    pub fn tcp_parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Tcp(text) => text.split_once('/'),
            Self::NatsTcp(_) | Self::Other(_) => None,
        }
    }
}

/// One instance of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Document", into = "Document")]
pub struct Endpoint {
    /// Its names.
    pub id: EndpointId,
    /// The process that serves it.
    pub instance_id: u64,
    /// How it is reached.
    pub transport: Transport,
    /// `cuda` or `cpu`; 1.6.1's workers say the first also where there is none.
    pub device_type: Option<String>,
    /// How request bodies are encoded: `msgpack`, or `json`, which none means too.
    pub request_plane_codec: Option<String>,
}

impl Endpoint {
    /// An instance reached over TCP that takes MessagePack.
    pub fn tcp(id: EndpointId, instance_id: u64, address: &str) -> Self {
        let transport = Transport::tcp(address, &id, instance_id);
        Self::new(id, instance_id, transport)
    }

    /// An instance that takes MessagePack.
    pub fn new(id: EndpointId, instance_id: u64, transport: Transport) -> Self {
        Self { id, instance_id, transport, device_type: Some("cuda".to_owned()), request_plane_codec: Some("msgpack".to_owned()) }
    }

    /// `v1/instances/<ns>/<component>/<endpoint>/<instance hex>`.
    pub fn key(&self) -> Key {
        Key::new(Bucket::Instances, &self.id.instance_path(self.instance_id))
    }
}

/// The names as they are written, in their order.
#[derive(Serialize, Deserialize)]
struct Document {
    component: String,
    endpoint: String,
    namespace: String,
    instance_id: u64,
    transport: Transport,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_plane_codec: Option<String>,
}

impl From<Document> for Endpoint {
    fn from(document: Document) -> Self {
        Self {
            id: EndpointId::new(document.namespace, document.component, document.endpoint),
            instance_id: document.instance_id,
            transport: document.transport,
            device_type: document.device_type,
            request_plane_codec: document.request_plane_codec,
        }
    }
}

impl From<Endpoint> for Document {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            component: endpoint.id.component,
            endpoint: endpoint.id.endpoint,
            namespace: endpoint.id.namespace,
            instance_id: endpoint.instance_id,
            transport: endpoint.transport,
            device_type: endpoint.device_type,
            request_plane_codec: endpoint.request_plane_codec,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_as_recorded_and_valid_whatever_the_names() {
        let recorded = EndpointId::new("dynamo", "backend", "worker_kv_query_source_1d8ba3e61bd962");
        assert_eq!(
            recorded.request_subject(0x6a6c_a22c_c744_3608),
            "dynamo_backend.worker_kv_query_source_1d8ba3e61bd962-6a6ca22cc7443608"
        );
        assert_eq!(EndpointId::new("My.Ns", "a b", "g>*é").request_subject(1), "my_ns_a_b.g___-1");
    }

    #[test]
    fn a_request_path_reads_back() {
        let id = EndpointId::new("dynamo", "backend", "generate");
        assert_eq!(EndpointId::of_request_path(&id.request_path(0x1f)), Some((id, 0x1f)));
        for other in ["", "1f", "1f/a/b", "x/a/b/c", "1f/a//c", "1f/a/b/", "probe"] {
            assert_eq!(EndpointId::of_request_path(other), None, "{other}");
        }
    }
}

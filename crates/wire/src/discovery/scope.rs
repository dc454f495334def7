//! What a topic's events are about: a namespace, a component of it or one of its endpoints.

use serde::{Deserialize, Serialize};

use super::EndpointId;

/// A scope, from wide to narrow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Scope {
    /// A namespace.
    Namespace {
        /// Its name.
        name: String,
    },
    /// A component.
    Component {
        /// The namespace.
        namespace: String,
        /// The component in it.
        component: String,
    },
    /// An endpoint, where 1.6.1 publishes everything.
    Endpoint {
        /// Which.
        endpoint: EndpointId,
    },
}

impl Scope {
    /// The scope of an endpoint.
    pub fn endpoint(id: &EndpointId) -> Self {
        Self::Endpoint { endpoint: id.clone() }
    }

    /// The path in keys: `namespace/<ns>/component/<c>/endpoint/<e>`, as far as the scope goes.
    pub fn path(&self) -> String {
        self.joined('/')
    }

    /// The prefix of NATS subjects, which is the path with dots.
    pub fn subject_prefix(&self) -> String {
        self.joined('.')
    }

    fn joined(&self, separator: char) -> String {
        let mut path = String::new();
        for (kind, name) in self.segments() {
            if !path.is_empty() {
                path.push(separator);
            }
            path.push_str(kind);
            path.push(separator);
            path.push_str(&encode_segment(name));
        }
        path
    }

    fn segments(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Namespace { name } => vec![("namespace", name)],
            Self::Component { namespace, component } => vec![("namespace", namespace), ("component", component)],
            Self::Endpoint { endpoint } => {
                vec![("namespace", &endpoint.namespace), ("component", &endpoint.component), ("endpoint", &endpoint.endpoint)]
            }
        }
    }
}

/// A name as one segment of a path or subject: every byte but `A-Z a-z 0-9 - _` as `%XX`, upper-case hex.
pub(crate) fn encode_segment(name: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            encoded.push(byte.into());
        } else {
            encoded.extend(['%', HEX[usize::from(byte >> 4)].into(), HEX[usize::from(byte & 15)].into()]);
        }
    }
    encoded
}

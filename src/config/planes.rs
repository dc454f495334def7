//! Where workers are found (discovery) and how their events travel (the event plane).
//!
//! Names, variables and defaults are Dynamo 1.6.1's, but for two defaults: discovery needs no etcd unless etcd is asked
//! for, and what this process publishes goes over NATS where discovery is etcd.

use std::{env, fmt, path::PathBuf};

use transport::{discovery::FOLDER, hosts, nats::DEFAULT_URL, plane::PlaneKind};

use super::{ConfigError, cli::ServeArgs};

/// Where etcd is unless told.
const ETCD: &str = "http://localhost:2379";

/// Discovery and event plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaneOptions {
    /// Where workers are found, beside the `--worker` list and `POST /workers`.
    pub(crate) discovery: Backend,
    /// Why there.
    pub(crate) discovery_reason: &'static str,
    /// How what this process publishes travels. What others publish is followed as their records say.
    pub(crate) event_plane: PlaneKind,
    /// The NATS server, dialled only where something needs it.
    pub(crate) nats_server: String,
    /// The only namespace whose workers are taken; `None`: all.
    pub(crate) namespace: Option<String>,
    /// Host that is advertised to subscribers of what this process publishes over ZMQ.
    pub(crate) event_host: Option<String>,
    /// Host on which workers call back with answers to what they were asked.
    pub(crate) response_host: Option<String>,
}

/// Where workers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Nowhere else than the list and the admin API.
    Mem,
    /// In a folder that all processes share.
    File {
        /// Its root.
        root: PathBuf,
    },
    /// In etcd.
    Etcd {
        /// Its members.
        endpoints: Vec<String>,
    },
}

impl PlaneOptions {
    pub(super) fn of_args(args: &ServeArgs) -> Result<Self, ConfigError> {
        let (discovery, discovery_reason) = backend(args)?;
        let event_plane = match given(args.event_plane.as_ref()) {
            Some(word) => PlaneKind::named(word)
                .ok_or_else(|| ConfigError::new("--event-plane", word, "allowed are nats and zmq (also of DYN_EVENT_PLANE)"))?,
            None if matches!(discovery, Backend::Etcd { .. }) => PlaneKind::Nats,
            None => PlaneKind::Zmq,
        };
        let nats_server = given(args.nats_server.as_ref()).unwrap_or(DEFAULT_URL);
        for server in nats_server.split(',') {
            url("--nats-server", server, &["nats", "tls"], "nats://HOST:PORT (also of NATS_SERVER)")?;
        }
        Ok(Self {
            discovery,
            discovery_reason,
            event_plane,
            nats_server: nats_server.to_owned(),
            namespace: given(args.namespace.as_ref()).map(str::to_owned),
            event_host: host(("--event-plane-host", "DYN_EVENT_PLANE_HOST"), args.event_plane_host.as_ref())?,
            response_host: host(("--tcp-response-stream-host", "DYN_TCP_RESPONSE_STREAM_HOST"), args.tcp_response_stream_host.as_ref())?,
        })
    }
}

/// What was written, unless that is nothing: a variable that is set to nothing is a variable that is not set.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn backend(args: &ServeArgs) -> Result<(Backend, &'static str), ConfigError> {
    let flag = "--discovery-backend";
    let file = || Backend::File { root: root(args) };
    match given(args.discovery_backend.as_ref()) {
        Some("mem") => Ok((Backend::Mem, "as configured")),
        Some("file") => Ok((file(), "as configured")),
        Some("etcd") => Ok((Backend::Etcd { endpoints: etcd_endpoints(args)? }, "as configured")),
        Some("kubernetes") => Err(ConfigError::new(
            flag,
            "kubernetes",
            "workers cannot be found through the Kubernetes API yet; use etcd, file or mem (also of DYN_DISCOVERY_BACKEND)",
        )),
        Some(other) => Err(ConfigError::new(flag, other, "allowed are mem, file and etcd (also of DYN_DISCOVERY_BACKEND)")),
        None if !args.worker.is_empty() => Ok((Backend::Mem, "workers are listed")),
        None if given(args.etcd_endpoints.as_ref()).is_some() => {
            Ok((Backend::Etcd { endpoints: etcd_endpoints(args)? }, "no worker is listed and etcd endpoints are given"))
        }
        None => Ok((file(), "no worker is listed and no etcd endpoint is given")),
    }
}

fn root(args: &ServeArgs) -> PathBuf {
    args.file_kv.clone().filter(|root| !root.as_os_str().is_empty()).unwrap_or_else(|| env::temp_dir().join(FOLDER))
}

fn etcd_endpoints(args: &ServeArgs) -> Result<Vec<String>, ConfigError> {
    let listed = given(args.etcd_endpoints.as_ref()).unwrap_or(ETCD);
    let endpoints = listed.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty());
    endpoints
        .map(|text| {
            if text.contains('@') {
                let allowed = "holds a user; give it by ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD";
                return Err(ConfigError::new("--etcd-endpoints", without_secret(text), allowed));
            }
            url("--etcd-endpoints", text, &["http", "https"], "http://HOST:PORT, several separated by commas (also of ETCD_ENDPOINTS)")
        })
        .collect()
}

/// A URL of one of these schemes; one that names none gets the first.
fn url(flag: &'static str, text: &str, schemes: &[&str], allowed: &'static str) -> Result<String, ConfigError> {
    let refused = || ConfigError::new(flag, without_secret(text), format!("is not {allowed}"));
    let (scheme, rest) = text.split_once("://").unwrap_or((schemes[0], text));
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let parsed: http::uri::Authority = host.parse().map_err(|_| refused())?;
    // A port that is none leaves its colon behind.
    let rest_of_host = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    let port_is_right = parsed.port_u16().map_or(!rest_of_host.contains(':'), |port| port > 0);
    if schemes.contains(&scheme) && !parsed.host().is_empty() && port_is_right { Ok(format!("{scheme}://{rest}")) } else { Err(refused()) }
}

/// A host without a port.
fn host((flag, variable): (&'static str, &str), text: Option<&String>) -> Result<Option<String>, ConfigError> {
    let Some(text) = given(text) else { return Ok(None) };
    match hosts::named(text) {
        Some(plain) => Ok(Some(plain.to_owned())),
        None => Err(ConfigError::new(flag, text, format!("is not a host name or address without a port (also of {variable})"))),
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mem => f.write_str("mem (the --worker list and POST /workers)"),
            Self::File { root } => write!(f, "file {}", root.display()),
            Self::Etcd { endpoints } => {
                write!(f, "etcd {}", endpoints.join(","))
            }
        }
    }
}

impl Backend {
    /// Its name alone.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::File { .. } => "file",
            Self::Etcd { .. } => "etcd",
        }
    }
}

/// A URL as it may be shown: user and password are left out.
pub(crate) fn without_secret(url: &str) -> String {
    let shown = |url: &str| match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
        None => url.to_owned(),
    };
    url.split(',').map(shown).collect::<Vec<_>>().join(",")
}

impl fmt::Display for PlaneOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "discovery         {}: {}", self.discovery, self.discovery_reason)?;
        match &self.namespace {
            Some(namespace) => writeln!(f, "namespace         {namespace}")?,
            None => writeln!(f, "namespace         all")?,
        }
        writeln!(
            f,
            "event plane       {} for what is published here; others are followed as their records say",
            self.event_plane.as_str()
        )?;
        writeln!(f, "nats              {}, dialled only where it is needed", without_secret(&self.nats_server))?;
        writeln!(f, "event host        {}", self.event_host.as_deref().unwrap_or("127.0.0.1, for this host alone"))?;
        writeln!(f, "response host     {}", self.response_host.as_deref().unwrap_or("127.0.0.1, for this host alone"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::cli::Cli;

    fn options(args: &[&str]) -> Result<PlaneOptions, ConfigError> {
        let args = [&["dynamo-frontend"], args].concat();
        PlaneOptions::of_args(&Cli::try_parse_from(args).unwrap().serve)
    }

    #[test]
    fn workers_that_are_listed_need_no_discovery_and_etcd_is_used_where_it_is_named() {
        let file = options(&["--file-kv", "/x"]).unwrap();
        assert_eq!((&file.discovery, file.event_plane), (&Backend::File { root: "/x".into() }, PlaneKind::Zmq));
        let listed = options(&["--worker", "http://a", "--etcd-endpoints", "http://e:1"]).unwrap();
        assert_eq!((&listed.discovery, listed.event_plane), (&Backend::Mem, PlaneKind::Zmq));
        let etcd = options(&["--etcd-endpoints", "e:1, https://f:2"]).unwrap();
        let endpoints = vec!["http://e:1".to_owned(), "https://f:2".to_owned()];
        assert_eq!((&etcd.discovery, etcd.event_plane), (&Backend::Etcd { endpoints }, PlaneKind::Nats));
        let both = options(&["--worker", "http://a", "--discovery-backend", "etcd"]).unwrap();
        assert_eq!(both.discovery, Backend::Etcd { endpoints: vec![ETCD.to_owned()] });
        // Set to nothing is not set.
        assert_eq!(options(&["--discovery-backend", "", "--event-plane", "", "--file-kv", "/x"]).unwrap(), file);
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = options(&["--nats-server", "nats://user:secret@n:1,nats://n:2"]).unwrap().to_string();
        assert!(shown.contains("nats://n:1,nats://n:2") && !shown.contains("secret"), "{shown}");
        let refused = options(&["--etcd-endpoints", "http://u:secret@e:1"]).unwrap_err().to_string();
        assert!(refused.contains("http://e:1") && refused.contains("ETCD_AUTH_USERNAME") && !refused.contains("secret"), "{refused}");
    }
}

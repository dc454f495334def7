//! Where etcd is and how it is reached.

use std::{fs, path::PathBuf, sync::Arc};

use http::Uri;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::discovery::OpenError;

/// 1.6.1's default.
const DEFAULT_ADDRESS: &str = "http://localhost:2379";

/// Addresses and credentials.
#[derive(Clone, Default)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one per member; without a scheme http is meant. The next is taken when one
    /// fails.
    pub endpoints: Vec<String>,
    /// User and password.
    pub credentials: Option<(String, String)>,
    /// PEM file of the authorities that sign etcd's certificate, beside the system's.
    pub authorities: Option<PathBuf>,
    /// PEM files of our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for EtcdConfig {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.credentials.as_ref().map(|(user, _)| user);
        out.debug_struct("EtcdConfig").field("endpoints", &self.endpoints).field("user", &user).finish_non_exhaustive()
    }
}

impl EtcdConfig {
    /// From 1.6.1's variables: `ETCD_ENDPOINTS`, separated by commas (`http://localhost:2379`), `ETCD_AUTH_USERNAME` and
    /// `ETCD_AUTH_PASSWORD`, `ETCD_AUTH_CA`, `ETCD_AUTH_CLIENT_CERT` and `ETCD_AUTH_CLIENT_KEY`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name| variable(name).filter(|text| !text.trim().is_empty());
        let endpoints = variable("ETCD_ENDPOINTS").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        let endpoints = endpoints.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        let file = |name| variable(name).map(PathBuf::from);
        Self {
            endpoints,
            credentials: variable("ETCD_AUTH_USERNAME").zip(variable("ETCD_AUTH_PASSWORD")),
            authorities: file("ETCD_AUTH_CA"),
            identity: file("ETCD_AUTH_CLIENT_CERT").zip(file("ETCD_AUTH_CLIENT_KEY")),
        }
    }

    /// Whether its addresses are some.
    pub fn check(&self) -> Result<(), OpenError> {
        self.bases().map(drop)
    }

    /// The addresses as the start of URLs, without a slash at their end.
    pub(super) fn bases(&self) -> Result<Vec<String>, OpenError> {
        let bases: Result<Vec<String>, OpenError> = self.endpoints.iter().map(|text| base(text)).collect();
        bases.and_then(|bases| if bases.is_empty() { Err(OpenError::Address(String::new())) } else { Ok(bases) })
    }

    pub(super) fn tls(&self) -> Result<ClientConfig, OpenError> {
        let mut roots = RootCertStore::empty();
        // Certificates of the system that cannot be read are left out, as other clients do.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for certificate in self.authorities.as_ref().map(certificates).transpose()?.unwrap_or_default() {
            roots.add(certificate).map_err(|error| OpenError::Tls(error.to_string()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| OpenError::Tls(error.to_string()))?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| OpenError::Tls(format!("{}: {error}", key.display())))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| OpenError::Tls(error.to_string()))
    }
}

fn base(text: &str) -> Result<String, OpenError> {
    let wrong = || OpenError::Address(text.to_owned());
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = full.parse().map_err(|_| wrong())?;
    match (uri.scheme_str(), uri.authority()) {
        (Some(scheme @ ("http" | "https")), Some(authority)) if !authority.as_str().contains('@') => Ok(format!("{scheme}://{authority}")),
        _ => Err(wrong()),
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(OpenError::Tls(format!("{}: no certificate in it", path.display()))),
        Err(error) => Err(OpenError::Tls(format!("{}: {error}", path.display()))),
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, OpenError> {
    fs::read(path).map_err(|error| OpenError::Tls(format!("{}: {error}", path.display())))
}

//! The address of one worker's HTTP server, parsed once.
//!
//! Leaves out: paths below the server's root that name an endpoint. A worker is given by its root; the endpoint comes
//! from the request that is forwarded.

use std::{fmt, str::FromStr};

use http::uri::{Authority, PathAndQuery, Scheme, Uri};

/// An http or https address: scheme, host, port, and for servers behind a gateway a path prefix.
///
/// Two spellings of one address (case of the host, default port, trailing slash) are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Empty, or a path that starts with `/` and does not end with it.
    prefix: String,
}

/// Why a text is not the address of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is not a worker's address: {reason}; expected http://host:port or https://host:port")]
pub struct UrlError {
    url: String,
    reason: String,
}

impl BaseUrl {
    /// The host as it stands in a URL: a name, an IPv4 address, or an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// The port, also when it was left to the scheme's default.
    pub fn port(&self) -> u16 {
        let default = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(default)
    }

    /// The absolute form of a path on this server.
    pub(crate) fn join(&self, path: &PathAndQuery) -> Result<Uri, http::Error> {
        let path = if self.prefix.is_empty() { path.clone() } else { PathAndQuery::try_from(format!("{}{path}", self.prefix))? };
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build()
    }
}

impl FromStr for BaseUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let fail = |reason: &str| UrlError { url: text.to_owned(), reason: reason.to_owned() };
        if text.contains('#') {
            return Err(fail("it has a fragment"));
        }
        let uri = Uri::from_str(text.trim()).map_err(|error| fail(&error.to_string()))?;
        let scheme = uri.scheme().cloned().ok_or_else(|| fail("the scheme is missing"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(fail("the scheme is neither http nor https"));
        }
        let authority = uri.authority().ok_or_else(|| fail("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(fail("it carries credentials; pass them as a header"));
        }
        if authority.host().is_empty() {
            return Err(fail("the host is empty"));
        }
        if uri.query().is_some() {
            return Err(fail("it has a query"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        if prefix.ends_with("/v1") {
            return Err(fail("it ends in /v1; give the server's root"));
        }
        let host = authority.host().to_ascii_lowercase();
        let default = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let authority = match authority.port() {
            Some(port) if port.as_u16() != default => format!("{host}:{}", port.as_u16()),
            None if authority.as_str().len() > authority.host().len() => return Err(fail("the port is not a number")),
            Some(_) | None => host,
        };
        let authority = Authority::try_from(authority).map_err(|error| fail(&error.to_string()))?;
        Ok(Self { scheme, authority, prefix })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> BaseUrl {
        text.parse().expect("a good address")
    }

    #[test]
    fn two_spellings_of_one_address_are_equal() {
        assert_eq!(url("http://GPU1:80/"), url("http://gpu1"));
        assert_eq!(url("https://gpu1:443"), url("https://gpu1/"));
        assert_ne!(url("http://gpu1:443"), url("https://gpu1:443"));
        assert_eq!(url("http://gpu1:8000/").to_string(), "http://gpu1:8000");
    }

    #[test]
    fn paths_are_joined_below_the_prefix() {
        let path = PathAndQuery::from_static("/v1/models?x=1");
        assert_eq!(url("http://a:1").join(&path).expect("joins").to_string(), "http://a:1/v1/models?x=1");
        assert_eq!(url("http://a:1/e/7/").join(&path).expect("joins").to_string(), "http://a:1/e/7/v1/models?x=1");
    }

    #[test]
    fn host_and_port_are_those_of_the_url() {
        assert_eq!((url("http://[::1]:8000").host(), url("http://[::1]:8000").port()), ("[::1]", 8000));
        assert_eq!((url("https://a").host(), url("https://a").port()), ("a", 443));
    }

    #[test]
    fn what_is_not_an_address_is_refused_with_its_reason() {
        for (text, reason) in [
            ("gpu1:8000", "scheme"),
            ("ftp://gpu1", "neither http nor https"),
            ("http://user:secret@gpu1", "credentials"),
            ("http://gpu1/?a=b", "query"),
            ("http://gpu1/#x", "fragment"),
            ("http://gpu1:8000/v1", "ends in /v1"),
            ("http://gpu1:notaport", "port"),
            ("http://gpu1:99999", "port"),
            ("http://", "expected http://host:port"),
            ("", "expected http://host:port"),
        ] {
            let error = text.parse::<BaseUrl>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

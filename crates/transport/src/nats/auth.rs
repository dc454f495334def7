//! How a connection identifies itself, in the order Dynamo 1.6.1 looks: its `NATS_AUTH_*` variables, then what the URL
//! says, then the placeholder it always sends.

use std::fmt;
use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};

/// Sent where nothing is configured, as user and as password: 1.6.1 does so, and servers without accounts ignore it.
const PLACEHOLDER: &str = "user";

/// What a NATS server is told about who we are.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum NatsAuth {
    /// User and password, or a token, as in the URL; where it has none, the placeholder "user" and "user".
    #[default]
    Url,
    /// User and password.
    UserPassword {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
    /// A token.
    Token(String),
    /// The seed of an NKey; the server is sent a signature, never the seed.
    NkeySeed(String),
    /// A `.creds` file (JWT and seed), read at each attempt to connect until it can be used.
    CredentialsFile(PathBuf),
}

impl NatsAuth {
    /// As the environment says: `NATS_AUTH_USERNAME` with `NATS_AUTH_PASSWORD`, else `NATS_AUTH_TOKEN`, else
    /// `NATS_AUTH_NKEY`, else `NATS_AUTH_CREDENTIALS_FILE`. Empty values count as unset.
    pub fn from_lookup(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        if let (Some(user), Some(password)) = (set("NATS_AUTH_USERNAME"), set("NATS_AUTH_PASSWORD")) {
            return Self::UserPassword { user, password };
        }
        let token = set("NATS_AUTH_TOKEN").map(Self::Token);
        let nkey = || set("NATS_AUTH_NKEY").map(Self::NkeySeed);
        let file = || set("NATS_AUTH_CREDENTIALS_FILE").map(|path| Self::CredentialsFile(path.into()));
        token.or_else(nkey).or_else(file).unwrap_or_default()
    }

    /// Puts it into the options of a connection to `servers`.
    pub(super) async fn apply(&self, options: ConnectOptions, servers: &[ServerAddr]) -> Result<ConnectOptions, String> {
        Ok(match self {
            Self::Url => match url_credentials(servers) {
                (Some(user), Some(password)) => options.user_and_password(user, password),
                // A user without a password is how a token is written in a URL.
                (Some(token), None) => options.token(token),
                (None, _) => options.user_and_password(PLACEHOLDER.to_owned(), PLACEHOLDER.to_owned()),
            },
            Self::UserPassword { user, password } => options.user_and_password(user.clone(), password.clone()),
            Self::Token(token) => options.token(token.clone()),
            Self::NkeySeed(seed) => options.nkey(seed.clone()),
            Self::CredentialsFile(path) => {
                let read = options.credentials_file(path).await;
                read.map_err(|error| format!("credentials file {}: {error}", path.display()))?
            }
        })
    }
}

/// Never shows a secret.
impl fmt::Debug for NatsAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "Url",
            Self::UserPassword { .. } => "UserPassword",
            Self::Token(_) => "Token",
            Self::NkeySeed(_) => "NkeySeed",
            Self::CredentialsFile(_) => "CredentialsFile",
        })
    }
}

fn url_credentials(servers: &[ServerAddr]) -> (Option<String>, Option<String>) {
    let server = servers.iter().find(|server| server.has_user_pass());
    let text = |part: Option<&str>| part.filter(|part| !part.is_empty()).map(percent_decoded);
    server.map_or((None, None), |server| (text(server.username()), text(server.password())))
}

/// URLs carry odd characters of a password as `%XX`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&'static str, &'static str)]) -> NatsAuth {
        let variables = variables.to_vec();
        NatsAuth::from_lookup(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_are_looked_at_in_order_and_empty_ones_are_unset() {
        let pair = [("NATS_AUTH_USERNAME", "u"), ("NATS_AUTH_PASSWORD", "p"), ("NATS_AUTH_TOKEN", "t")];
        assert_eq!(environment(&pair), NatsAuth::UserPassword { user: "u".into(), password: "p".into() });
        assert_eq!(environment(&pair[1..]), NatsAuth::Token("t".into()), "a password without a user is nobody");
        assert_eq!(environment(&[("NATS_AUTH_TOKEN", ""), ("NATS_AUTH_NKEY", "SU")]), NatsAuth::NkeySeed("SU".into()));
        assert_eq!(environment(&[("NATS_AUTH_CREDENTIALS_FILE", "/c")]), NatsAuth::CredentialsFile("/c".into()));
        assert_eq!(environment(&[]), NatsAuth::Url);
    }

    #[test]
    fn secrets_are_not_shown_and_come_out_of_urls_as_they_are_meant() {
        let auth = NatsAuth::UserPassword { user: "u".into(), password: "hidden".into() };
        assert!(!format!("{auth:?}").contains("hidden"));
        let parts = |url: &str| url_credentials(&[url.parse().unwrap()]);
        assert_eq!(parts("nats://h:1"), (None, None));
        assert_eq!(parts("nats://me:a%40b%zz@h"), (Some("me".into()), Some("a@b%zz".into())));
        assert_eq!(parts("nats://token@h"), (Some("token".into()), None));
    }
}

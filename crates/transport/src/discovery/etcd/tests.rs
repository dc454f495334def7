//! What etcd rarely says.

use super::{
    EtcdConfig,
    api::{TimeToLive, end_of_prefix},
};
use crate::discovery::OpenError;

#[test]
fn the_end_of_a_prefix_is_the_first_key_behind_it() {
    assert_eq!(end_of_prefix(b"v1/"), b"v10");
    assert_eq!(end_of_prefix(b"v\xff\xff"), b"w");
    assert_eq!(end_of_prefix(b"\xff"), b"\0", "all keys from there on");
    assert_eq!(end_of_prefix(b""), b"\0");
}

#[test]
fn numbers_are_read_as_strings_and_bare() {
    let read = |text: &str| serde_json::from_str::<TimeToLive>(text).map(|look| (look.left, look.granted, look.keys.len()));
    assert_eq!(read(r#"{"TTL":"29","grantedTTL":30,"keys":["djEv"],"more":{}}"#).unwrap(), (29, 30, 1));
    assert_eq!(read(r#"{"TTL":"-1"}"#).unwrap(), (-1, 0, 0));
    assert!(read(r#"{"TTL":"soon"}"#).is_err());
    assert!(read(r#"{"keys":["%"]}"#).is_err());
}

fn config(endpoints: &str) -> EtcdConfig {
    EtcdConfig::from_variables(|name| (name == "ETCD_ENDPOINTS").then(|| endpoints.to_owned()))
}

#[test]
fn addresses_are_completed_and_wrong_ones_are_named() {
    assert_eq!(config("").bases().unwrap(), ["http://localhost:2379"]);
    assert_eq!(config("a:1, https://b:2/,http://[::1]:3").bases().unwrap(), ["http://a:1", "https://b:2", "http://[::1]:3"]);
    for wrong in ["ftp://a:1", "http://user:secret@a:1", "http://", "a b", ","] {
        assert!(matches!(config(wrong).bases(), Err(OpenError::Address(_))), "{wrong}");
    }
}

#[test]
fn credentials_need_both_parts() {
    let all = EtcdConfig::from_variables(|name| Some(name.to_owned()));
    assert_eq!(all.credentials.unwrap(), ("ETCD_AUTH_USERNAME".to_owned(), "ETCD_AUTH_PASSWORD".to_owned()));
    assert_eq!(all.identity.unwrap(), ("ETCD_AUTH_CLIENT_CERT".into(), "ETCD_AUTH_CLIENT_KEY".into()));
    let user = EtcdConfig::from_variables(|name| (name == "ETCD_AUTH_USERNAME").then(|| "me".to_owned()));
    assert_eq!(user.credentials, None);
}

#[test]
fn a_missing_file_of_authorities_is_an_error_that_names_it() {
    let config = EtcdConfig { authorities: Some("/nowhere/ca.pem".into()), ..EtcdConfig::default() };
    assert!(config.tls().unwrap_err().to_string().contains("/nowhere/ca.pem"));
}

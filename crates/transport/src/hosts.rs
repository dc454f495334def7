//! Hosts that others are told, and the interfaces that are listened on for them. For whoever reads such hosts from a command line or
//! the environment.

use std::net::IpAddr;

/// This host alone.
const LOOPBACK: &str = "127.0.0.1";

/// A host name or an address without a port; brackets around an address are taken off. `None` for anything else.
pub fn named(text: &str) -> Option<&str> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    let is_name = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    (is_name || plain.parse::<IpAddr>().is_ok()).then_some(plain)
}

/// The interface to listen on for a host that others are told: it may be a name or an address that only they know, so all
/// interfaces, unless it is this host's own loopback.
fn interface(host: &str) -> String {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    match plain.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => plain.to_owned(),
        Ok(address) if address.is_ipv6() => "::".to_owned(),
        Err(_) if plain == "localhost" => LOOPBACK.to_owned(),
        Ok(_) | Err(_) => "0.0.0.0".to_owned(),
    }
}

/// The same where there may be no such host: loopback then, for this host alone.
pub fn interface_for(host: Option<&str>) -> String {
    host.map_or_else(|| LOOPBACK.to_owned(), interface)
}

/// An interface and a port, as sockets are bound.
pub fn address(interface: &str, port: u16) -> String {
    if interface.contains(':') { format!("[{interface}]:{port}") } else { format!("{interface}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_are_told_is_listened_for_on_all_interfaces_and_loopback_stays_loopback() {
        let bound = |host: &str| named(host).map(|plain| address(&interface(plain), 7));
        for (host, expected) in [
            ("pod-7.ns", "0.0.0.0:7"),
            ("10.0.0.1", "0.0.0.0:7"),
            ("[fd00::1]", "[::]:7"),
            ("fd00::1", "[::]:7"),
            ("127.0.0.2", "127.0.0.2:7"),
            ("[::1]", "[::1]:7"),
            ("localhost", "127.0.0.1:7"),
        ] {
            assert_eq!(bound(host).as_deref(), Some(expected), "{host}");
        }
        assert!(["ju nk", "pod-7:1", "", "[]"].iter().all(|text| named(text).is_none()));
    }
}

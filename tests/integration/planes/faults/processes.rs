//! What the system knows of a process: its memory and the ports it listens at.

use std::{collections::HashSet, fs, net::SocketAddr};

/// In `/proc/net/tcp`.
const LISTENS: &str = "0A";

pub(super) fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Files and sockets it has open.
pub(super) fn open_files(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Where it can be connected to, on loopback.
pub(super) fn listens_at(process: u32) -> Vec<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let sockets: HashSet<String> = links
        .filter_map(|link| {
            let target = fs::read_link(link.ok()?.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
            Some(inode)
        })
        .collect();
    let mut addresses: Vec<SocketAddr> = ["tcp", "tcp6"]
        .iter()
        .flat_map(|family| {
            fs::read_to_string(format!("/proc/{process}/net/{family}")).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let listens = columns.get(3) == Some(&LISTENS) && sockets.contains(*columns.get(9)?);
            let port = u16::from_str_radix(columns.get(1)?.rsplit_once(':')?.1, 16).ok()?;
            listens.then(|| SocketAddr::from(([127, 0, 0, 1], port)))
        })
        .collect();
    addresses.sort();
    addresses
}

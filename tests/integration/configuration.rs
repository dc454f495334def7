//! What the process says of its configuration, and how it ends where it cannot be used.

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, TcpListener},
    os::unix::ffi::OsStrExt,
    process::Command,
};

use crate::support::frontend::run;

/// Arguments, environment, and what the message must name: the flag or variable, the value, what is allowed.
type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static [&'static str]);

const REFUSED: &[Case] = &[
    (&["--http-port", "70000"], &[], &["--http-port", "70000", "65535"]),
    (&["--http-port", "http"], &[], &["--http-port", "http"]),
    (&[], &[("DYN_HTTP_PORT", "-1")], &["--http-port", "-1"]),
    (&["--router-mode", "fastest"], &[], &["--router-mode", "fastest", "kv", "round-robin", "power-of-two", "least-loaded", "direct"]),
    (&[], &[("DYN_ROUTER_MODE", "fastest")], &["--router-mode", "fastest", "round-robin"]),
    (&["--kv-cache-block-size", "0"], &[], &["--kv-cache-block-size", "0", "1..=65536"]),
    (&["--router-temperature", "-0.5"], &[], &["--router-temperature", "-0.5", "from 0 up"]),
    (&["--router-temperature", "nan"], &[], &["--router-temperature", "NaN", "finite"]),
    (&["--router-temperature", "1e10"], &[], &["--router-temperature", "10000000000", "up to 1000000000"]),
    (&["--check", "--router-prefill-load-scale", "2e9"], &[], &["--router-prefill-load-scale", "2000000000"]),
    (&["--engine-ca-file", "/nonexistent/ca.pem"], &[], &["--engine-ca-file", "/nonexistent/ca.pem", "PEM"]),
    (&["--engine-ca-file", "Cargo.toml"], &[], &["--engine-ca-file", "Cargo.toml", "no certificate", "PEM"]),
    (&["--engine-authorization", "Bearer a\nb"], &[], &["--engine-authorization", "one line"]),
    (&[], &[("DYN_ENGINE_AUTHORIZATION", "Bearer\u{7f}")], &["--engine-authorization", "one line"]),
    (&["--router-mode", "kv", "--model-path", "src"], &[], &["--model-path", "src", "tokenizer.json"]),
    (&["--router-mode", "kv", "--check", "--model-path", "m=src"], &[], &["--model-path", "m=src", "tokenizer.json"]),
    (&["--worker", "http://gpu1,dp-start=70000"], &[], &["--worker", "dp-start=70000", "0 to 65535"]),
    (&[], &[("DYN_ROUTER_TEMPERATURE", "warm")], &["--router-temperature", "warm"]),
    (&["--no-router-kv-events", "--router-ttl-secs", "0"], &[], &["--router-ttl-secs", "0", "above 0"]),
    (&["--drain-timeout-secs", "-1"], &[], &["--drain-timeout-secs", "-1", "above 0"]),
    (&["--router-predicted-blocks", "0"], &[], &["--router-predicted-blocks", "0"]),
    (&[], &[("DYN_RUNTIME_NUM_WORKER_THREADS", "2000")], &["--http-threads", "2000", "0..=1024"]),
    (&["--http-body-limit-mb", "0"], &[], &["--http-body-limit-mb", "0", "1..=4096"]),
    (&["--log-format", "xml"], &[], &["--log-format", "xml", "text", "json"]),
    (&["--discovery-backend", "zookeeper"], &[], &["--discovery-backend", "zookeeper", "mem", "file", "etcd"]),
    (&[], &[("DYN_DISCOVERY_BACKEND", "zookeeper")], &["DYN_DISCOVERY_BACKEND", "zookeeper", "etcd"]),
    (&["--discovery-backend", "kubernetes"], &[], &["--discovery-backend", "kubernetes", "yet", "etcd, file or mem"]),
    (&[], &[("DYN_EVENT_PLANE", "kafka")], &["DYN_EVENT_PLANE", "kafka", "nats and zmq"]),
    (&["--event-plane", "kafka", "--check"], &[], &["--event-plane", "kafka", "nats and zmq"]),
    (&[], &[("ETCD_ENDPOINTS", "http://a:1,ftp://b")], &["ETCD_ENDPOINTS", "ftp://b", "http://HOST:PORT"]),
    (&["--nats-server", "nats://n:99999"], &[], &["--nats-server", "n:99999", "NATS_SERVER"]),
    (&[], &[("DYN_EVENT_PLANE_HOST", "tcp://h:1")], &["DYN_EVENT_PLANE_HOST", "tcp://h:1", "host"]),
    (&["--tcp-response-stream-host", "h:1"], &[], &["DYN_TCP_RESPONSE_STREAM_HOST", "h:1", "without a port"]),
    (&["--worker", "gpu1:8000"], &[], &["--worker", "gpu1:8000", "http"]),
    (&["--worker", "ftp://gpu1"], &[], &["--worker", "ftp://gpu1", "http"]),
    (&["--worker", "http://gpu1,block-size=0"], &[], &["--worker", "block-size=0", "1 to 65536"]),
    (&["--worker", "http://gpu1,colour=red"], &[], &["--worker", "colour", "block-size"]),
    (&["--worker", "http://gpu1,role=chef"], &[], &["--worker", "role=chef", "aggregated"]),
    (&["--worker", "http://gpu1,events=udp://gpu1:1"], &[], &["--worker", "udp://gpu1:1", "tcp://"]),
    (&["--worker", "http://gpu1,lora=sql"], &[], &["--worker", "lora=sql", "ID:NAME"]),
    (&["--worker", "http://a,id=x", "--worker", "http://b,id=x"], &[], &["--worker", "x", "each id once"]),
    (&["--worker", "http://a", "--worker", "http://a/,id=y"], &[], &["--worker", "http://a", "each URL once"]),
    (&[], &[("DYN_WORKERS", "http://a http://a")], &["--worker", "http://a", "each URL once"]),
    (&["--model-path", "/nonexistent/model"], &[], &["--model-path", "/nonexistent/model", "folder"]),
    (&["--nonsense"], &[], &["--nonsense"]),
    (&["demo", "--workers", "0"], &[], &["--workers", "0", "1..=64"]),
];

#[test]
fn what_cannot_be_used_is_named_with_what_is_allowed() {
    for (args, environment, named) in REFUSED {
        let run = run(args, environment);
        assert_eq!(run.status, Some(64), "{args:?} {environment:?}: {run:?}");
        assert!(run.stdout.is_empty(), "{run:?}");
        for part in *named {
            assert!(run.stderr.contains(part), "{args:?} {environment:?} does not say {part:?}: {}", run.stderr);
        }
    }
}

#[test]
fn a_port_that_is_taken_ends_the_process_with_the_port() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for args in
        [&["--http-host", "127.0.0.1", "--http-port", &port][..], &["--http-host", "127.0.0.1", "--http-port", "0", "--admin-port", &port]]
    {
        let run = run(args, &[]);
        assert_eq!(run.status, Some(1), "{run:?}");
        assert!(run.stderr.contains(&port), "{run:?}");
    }
}

/// A flag wins over its variable, and a variable over the default.
#[test]
fn check_prints_the_effective_configuration_and_exits() {
    let environment = [
        ("DYN_ROUTER_MODE", "random"),
        ("DYN_HTTP_PORT", "9001"),
        ("DYN_KV_CACHE_BLOCK_SIZE", "64"),
        ("DYN_RUNTIME_NUM_WORKER_THREADS", "7"),
        ("DYN_PREPROCESS_WORKERS", "5"),
    ];
    let args = ["--check", "--http-port", "9002", "--http-threads", "3", "--worker", "http://gpu1:8000,id=one,events=none"];
    let run = run(&args, &environment);
    assert_eq!(run.status, Some(0), "{run:?}");
    assert!(run.stderr.is_empty(), "{run:?}");
    for (label, value) in [
        ("listen", "0.0.0.0:9002"),
        ("router mode", "random"),
        ("block size", "64 tokens"),
        ("threads", "3 for requests, 5 for tokenizers"),
        ("worker", "one at http://gpu1:8000"),
    ] {
        let line = run.stdout.lines().find(|line| line.starts_with(label));
        assert!(line.is_some_and(|line| line.contains(value)), "{label} is not {value}: {}", run.stdout);
    }
}

/// Where workers are found, with the reason, by what else is given.
#[test]
fn check_says_where_workers_are_found_and_why() {
    let cases: [Case; 5] = [
        (&["--worker", "http://a"], &[("ETCD_ENDPOINTS", "http://e:2379")], &["mem", "workers are listed", "zmq"]),
        (&[], &[("ETCD_ENDPOINTS", "http://e:2379"), ("DYN_EVENT_PLANE", "")], &["etcd http://e:2379", "etcd endpoints are given", "nats"]),
        (&[], &[("DYN_FILE_KV", "/kv")], &["file /kv", "no etcd endpoint", "zmq"]),
        (&["--event-plane", "nats"], &[("TMPDIR", "/some")], &["file /some/dynamo_store_kv", "no worker is listed", "nats"]),
        (&["--worker", "http://a", "--discovery-backend", "file"], &[("DYN_FILE_KV", "/kv")], &["file /kv", "as configured", "zmq"]),
    ];
    for (args, environment, named) in cases {
        let [backend, why, plane] = named else { panic!("{named:?}") };
        let run = run(&[&["--check"], args].concat(), environment);
        assert_eq!(run.status, Some(0), "{run:?}");
        let line = |label: &str| run.stdout.lines().find(|line| line.starts_with(label)).unwrap_or_default().to_owned();
        assert!(line("discovery").contains(backend) && line("discovery").contains(why), "{args:?}: {}", run.stdout);
        assert!(line("event plane").contains(plane), "{args:?}: {}", run.stdout);
    }
    let run = run(
        &["--check", "--namespace", "prod", "--event-plane-host", "10.0.0.1"],
        &[("NATS_SERVER", "nats://n:4223"), ("DYN_TCP_RESPONSE_STREAM_HOST", "eth")],
    );
    for (label, value) in [("namespace", "prod"), ("nats", "nats://n:4223"), ("event host", "10.0.0.1"), ("response host", "eth")] {
        assert!(run.stdout.lines().any(|line| line.starts_with(label) && line.contains(value)), "{label}: {}", run.stdout);
    }
}

#[test]
fn a_configuration_that_is_refused_is_refused_by_check_too() {
    assert_eq!(run(&["--check", "--router-temperature", "-1"], &[]).status, Some(64));
}

#[test]
fn a_secret_that_cannot_be_used_is_not_printed() {
    let run = run(&["--engine-authorization", "Bearer se\ncret"], &[]);
    assert!(!run.stderr.contains("cret"), "{run:?}");
}

#[test]
fn help_and_version_succeed() {
    let help = run(&["--help"], &[]);
    assert_eq!((help.status, help.stderr.as_str()), (Some(0), ""));
    for flag in ["--worker", "--router-mode", "--no-router-kv-events", "--model-path", "DYN_ROUTER_MODE", "demo"] {
        assert!(help.stdout.contains(flag), "{flag} is not in the help");
    }
    let version = run(&["--version"], &[]);
    assert_eq!(version.status, Some(0));
    assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{version:?}");
}

#[test]
fn a_variable_that_is_no_text_is_refused_and_not_taken_as_unset() {
    for name in ["DYN_WORKERS", "DYN_MODEL_PATH"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dynamo-frontend"));
        let output = command.env_clear().arg("--check").env(name, OsStr::from_bytes(b"\xff\xfe")).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{name}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("{name}=...: is not UTF-8")), "{name}: {output:?}");
    }
}

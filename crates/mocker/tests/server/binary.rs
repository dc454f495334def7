//! `dynamo-mocker` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_dynamo-mocker");

#[test]
fn it_says_where_it_is_serves_and_ends_at_sigterm() {
    let mut child = Command::new(BINARY)
        .args(["--http-port", "0", "--events-port", "0", "--replay-port", "0", "--ranks", "2", "--model-name", "m"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.next().unwrap().strip_prefix("http http://").unwrap().to_owned();
    for rank in 0..2 {
        let line = lines.next().unwrap();
        assert!(line.starts_with(&format!("rank {rank} events tcp://127.0.0.1:")) && line.contains(" replay tcp://127.0.0.1:"), "{line}");
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"id\":\"m\""), "{answer}");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_cannot_be_is_refused_with_status_64_and_the_flag_named() {
    for (arguments, named) in [
        (&["--block-size", "0"][..], "--block-size"),
        (&["--generation", "vllm-9"], "vllm-0.33"),
        (&["--ranks", "0"], "1 to 64"),
        (&["--blocks", "8"], "cannot hold one sequence"),
        (&["--speedup-ratio=-1"], "speed-up"),
        (&["--nope"], "--nope"),
    ] {
        let output = Command::new(BINARY).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {said}");
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(BINARY).args(["--http-port", &port, "--events-port", "0", "--replay-port", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains(&port));
}

#[test]
fn help_names_every_default_and_the_model_folder_can_be_had() {
    let help = Command::new(BINARY).arg("--help").output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    for word in ["--speedup-ratio", "[default: 5557]", "tokens per second", "vllm-0.12", "sglang-0.5.23", "/mocker/faults"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    let dir = std::env::temp_dir().join(format!("dynamo-mocker-{}", std::process::id()));
    assert!(Command::new(BINARY).arg("--write-model").arg(&dir).status().unwrap().success());
    let mut files: Vec<String> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(files, ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]);
}

//! Recorded streams of real engines: what they were asked, what they answered, and the frames they published.
//!
//! The files are in `tests/captures`; the README beside them says what each kind of line holds. Lines keep their
//! order, and their JSON for whatever is not typed here. A file that does not have the promised shape panics with its
//! name and line: there is nothing a test could do about it.

mod base64;
mod line;

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::repository;

pub use line::{Control, Line, Live, Replay, Replayed, Request, Scenario};

/// One capture file.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Folder and name, without the extension: `vllm/01-plain-store`.
    pub name: String,
    /// The first line.
    pub scenario: Scenario,
    /// The other lines.
    pub lines: Vec<Line>,
}

impl Capture {
    /// The messages of the live stream.
    pub fn live(&self) -> impl Iterator<Item = &Live> {
        self.lines.iter().filter_map(|line| if let Line::Live(live) = line { Some(live) } else { None })
    }

    /// The requests.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.lines.iter().filter_map(|line| if let Line::Request(request) = line { Some(&**request) } else { None })
    }

    /// The replays that were asked for.
    pub fn replays(&self) -> impl Iterator<Item = &Replay> {
        self.lines.iter().filter_map(|line| if let Line::Replay(replay) = line { Some(replay) } else { None })
    }

    /// The parts of a file: a legacy file has several scenarios one after another, each of which begins with a clear
    /// and shows a jump in the sequence; any other file is one part.
    pub fn parts(&self) -> Vec<&[Line]> {
        self.lines.chunk_by(|before, after| before.part() == after.part()).collect()
    }
}

/// Reads the capture `vllm/01-plain-store`, `legacy/vllm-0.33.0` and so on.
pub fn load(name: &str) -> Capture {
    let path = folder().join(format!("{name}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let mut lines = text.lines().enumerate().map(|(number, line)| {
        let at = format!("{name}:{}", number + 1);
        let json: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{at}: {error}"));
        (at, json)
    });
    let (at, first) = lines.next().unwrap_or_else(|| panic!("{name} is empty"));
    Capture { name: name.to_owned(), scenario: Scenario::new(&at, first), lines: lines.map(|(at, json)| Line::new(&at, json)).collect() }
}

/// Reads every capture of a folder (`vllm` or `legacy`), in the order of their names.
pub fn all(of: &str) -> Vec<Capture> {
    let path = folder().join(of);
    let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("list {}: {error}", path.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("list {}: {error}", path.display())).path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .filter_map(|path| Some(format!("{of}/{}", path.file_stem()?.to_str()?)))
        .collect();
    names.sort();
    names.iter().map(|name| load(name)).collect()
}

fn folder() -> PathBuf {
    repository().join("tests/captures")
}

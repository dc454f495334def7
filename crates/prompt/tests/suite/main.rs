//! Tests of the crate as its users see it, in one binary.

mod bodies;
mod captures;
mod cost;
mod fuzz;
mod generation;
mod golden;
mod here;
mod media;
mod pooled;
mod remote;
mod tokenizers_agree;
mod vocabulary;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use prompt::{BadRequest, Endpoint, Folder, LoadOptions, Request};

/// A folder of the repository's test data.
fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

fn tiny() -> Folder {
    Folder::load(&data("models/tiny-llama"), &LoadOptions::default()).expect("the tiny model loads")
}

/// A folder with the tiny model's tokenizer and other files beside it.
fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(data("models/tiny-llama/tokenizer.json"), folder.path().join("tokenizer.json")).expect("copied");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

fn parse(endpoint: Endpoint, body: &serde_json::Value) -> Result<Request, BadRequest> {
    prompt::parse(endpoint, &Bytes::from(body.to_string()))
}

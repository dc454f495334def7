//! The files of a model's folder, as its card tells them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// The largest file that is hashed for a card, in bytes: tokenizers of large vocabularies are some 30 MiB.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Where longest sequences are found in a configuration, in the order in which they count.
const CONTEXT_LENGTHS: [&[&str]; 4] =
    [&["max_position_embeddings"], &["text_config", "max_position_embeddings"], &["model_max_length"], &["n_positions"]];

/// What was found in a model's folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelFiles {
    /// `config.json`.
    config: Option<Value>,
    tokenizer: Option<Value>,
    tokenizer_config: Option<Value>,
    chat_template: Option<Value>,
    generation_config: Option<Value>,
    /// The longest sequence by the configuration, in tokens.
    pub context_length: Option<u32>,
}

/// Why a folder is of no use.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Routers need these two to prepare requests.
    #[error("{} has no {file}, which routers need", folder.display())]
    Missing {
        /// Where.
        folder: PathBuf,
        /// What.
        file: &'static str,
    },
}

impl ModelFiles {
    /// Hashes the files of a folder. It takes as long as reading them, on the calling thread.
    pub(crate) fn of_folder(folder: &Path) -> Result<Self, FilesError> {
        let known = |name: &'static str| entry(folder, name);
        let config = known("config.json")?;
        let context_length = match &config {
            Some(_) => context_length(&read(&folder.join("config.json"))?),
            None => None,
        };
        let missing = |file| FilesError::Missing { folder: folder.to_owned(), file };
        Ok(Self {
            config: Some(config.ok_or_else(|| missing("config.json"))?),
            tokenizer: Some(known("tokenizer.json")?.ok_or_else(|| missing("tokenizer.json"))?),
            tokenizer_config: known("tokenizer_config.json")?,
            chat_template: known("chat_template.jinja")?,
            generation_config: known("generation_config.json")?,
            context_length,
        })
    }

    /// The card's fields, in 1.6.1's words and order.
    pub(super) fn fields(&self) -> [(&'static str, Option<Value>); 5] {
        let under = |name: &str, entry: &Option<Value>| entry.as_ref().map(|entry| json!({ name: entry }));
        let template = self.chat_template.as_ref().map(|file| json!({"is_custom": false, "file": file}));
        [
            ("model_info", under("hf_config_json", &self.config)),
            ("tokenizer", under("hf_tokenizer_json", &self.tokenizer)),
            ("prompt_formatter", under("hf_tokenizer_config_json", &self.tokenizer_config)),
            ("chat_template_file", under("hf_chat_template", &template)),
            ("gen_config", under("hf_generation_config_json", &self.generation_config)),
        ]
    }
}

/// A file with its hash and size; `None` if it is not there.
fn entry(folder: &Path, name: &'static str) -> Result<Option<Value>, FilesError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let content = read(&path)?;
    // As others name it: without links and relative parts.
    let path = fs::canonicalize(&path).map_err(|error| FilesError::Read { path: path.clone(), error })?;
    let checksum = format!("blake3:{}", blake3::hash(&content).to_hex());
    Ok(Some(json!({"path": path.to_string_lossy(), "checksum": checksum, "size": content.len()})))
}

fn read(path: &Path) -> Result<Vec<u8>, FilesError> {
    let failed = |error| FilesError::Read { path: path.to_owned(), error };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > MAX_FILE_BYTES {
        return Err(failed(io::Error::other(format!("{length} bytes, expected at most {MAX_FILE_BYTES}"))));
    }
    fs::read(path).map_err(failed)
}

fn context_length(config: &[u8]) -> Option<u32> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let at = |path: &[&str]| path.iter().try_fold(&config, |value, key| value.get(key))?.as_u64();
    CONTEXT_LENGTHS.into_iter().find_map(|path| u32::try_from(at(path)?).ok())
}

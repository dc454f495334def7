//! Where a model's files lie: in one folder, as they come from a hub, or each in its own place, as a model card lists them.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LoadError;

/// The largest file that is read: some ten times the largest tokenizer known.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path on this host.
    pub path: PathBuf,
    /// Its BLAKE3 sum in hex, perhaps behind `blake3:` as model cards write it, where somebody vouched for one; a file with
    /// another sum is not used.
    pub blake3: Option<String>,
}

impl File {
    /// A file whose content nobody vouched for.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), blake3: None }
    }

    /// The whole file; nothing where it does not exist.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, LoadError> {
        let failed = |source| LoadError::Read { path: self.path.clone(), source };
        match std::fs::metadata(&self.path) {
            // A device or a pipe may have no end.
            Ok(found) if !found.is_file() => return Err(failed(std::io::Error::other("it is not a file"))),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && self.blake3.is_none() => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&self.path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(failed(std::io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes"))));
        }
        if let Some(expected) = &self.blake3 {
            let expected = expected.strip_prefix("blake3:").unwrap_or(expected);
            let found = blake3::hash(&bytes).to_hex();
            if !expected.eq_ignore_ascii_case(&found) {
                let (expected, found) = (expected.to_owned(), found.to_string());
                return Err(LoadError::Checksum { path: self.path.clone(), expected, found });
            }
        }
        Ok(Some(bytes))
    }

    /// The file as JSON.
    pub(crate) fn json(&self) -> Result<Option<Value>, LoadError> {
        let Some(bytes) = self.read()? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|source| LoadError::Json { path: self.path.clone(), source })
    }

    /// The file as text.
    pub(crate) fn text(&self) -> Result<Option<String>, LoadError> {
        let Some(bytes) = self.read()? else { return Ok(None) };
        let failed = |error| LoadError::Read { path: self.path.clone(), source: std::io::Error::new(ErrorKind::InvalidData, error) };
        String::from_utf8(bytes).map(Some).map_err(failed)
    }
}

/// A model's files. Only the first must be there; one that is named and does not exist counts as not named, unless it comes
/// with a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// `tokenizer.json`.
    pub tokenizer: File,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<File>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<File>,
    /// `chat_template.jinja`, or `chat_template.json`, told by their extension; the first that exists counts. Without
    /// any, the template in `tokenizer_config.json`.
    pub chat_templates: Vec<File>,
    /// The template for conversations with tools, where there is one of its own.
    pub tool_use_template: Option<File>,
    /// `config.json`.
    pub config: Option<File>,
    /// `generation_config.json`.
    pub generation_config: Option<File>,
}

impl Files {
    /// Those of a folder, under their usual names.
    pub fn in_folder(folder: &Path) -> Self {
        let file = |name: &str| File::new(folder.join(name));
        Self {
            tokenizer: file("tokenizer.json"),
            tokenizer_config: Some(file("tokenizer_config.json")),
            special_tokens_map: Some(file("special_tokens_map.json")),
            chat_templates: vec![file("chat_template.jinja"), file("chat_template.json")],
            tool_use_template: Some(file("additional_chat_templates/tool_use.jinja")),
            config: Some(file("config.json")),
            generation_config: Some(file("generation_config.json")),
        }
    }
}

/// A file that may not be named.
pub(crate) fn json(file: Option<&File>) -> Result<Value, LoadError> {
    Ok(file.map(File::json).transpose()?.flatten().unwrap_or_default())
}

/// A file that may not be named.
pub(crate) fn text(file: Option<&File>) -> Result<Option<String>, LoadError> {
    Ok(file.map(File::text).transpose()?.flatten())
}

//! What a model card means for this frontend: what part of requests its worker does, whether it can be served at all, and where
//! its tokenizer and its templates lie.

use std::path::{Path, PathBuf};

use prompt::{File, Files};
use wire::discovery::{CardFile, FileRole, ModelCard, ModelType, TokenizerKind, WorkerType};

use super::{Role, Text};

/// Most bytes of one file of a model: some ten times the largest tokenizer known.
const MOST_FILE_BYTES: u64 = 512 << 20;

/// What part of requests a worker with this card does.
///
/// # Errors
/// Why it cannot be sent any.
pub(in crate::fleet) fn role(card: &ModelCard) -> Result<Role, String> {
    if let Some(input) = card.model_input().filter(|input| !["Tokens", "Text"].contains(input)) {
        return Err(format!("its model takes {input}, and only workers that take Tokens or Text can be sent requests"));
    }
    if takes_text(card) && card.worker_type() != Some(WorkerType::Aggregated) {
        return Err("its model takes Text, and nobody can be sent a part of such a request".to_owned());
    }
    let answers = || {
        let says_nothing = card.0.get("model_type").is_none();
        if says_nothing || card.serves(ModelType::Chat) || card.serves(ModelType::Completions) {
            Ok(())
        } else {
            Err("its model serves neither Chat nor Completions".to_owned())
        }
    };
    match card.worker_type() {
        Some(WorkerType::Prefill) => Ok(Role::Prefill),
        Some(WorkerType::Decode) => answers().map(|()| Role::Decode),
        Some(WorkerType::Aggregated) => answers().map(|()| Role::Aggregated),
        Some(WorkerType::Encode) => Err("it encodes images and such, which no request is sent for".to_owned()),
        None => Err("its card names a part of requests that is not known here".to_owned()),
    }
}

/// Whether its worker is sent the client's body rather than token ids.
pub(in crate::fleet) fn takes_text(card: &ModelCard) -> bool {
    card.model_input() == Some("Text")
}

/// What a worker answers that takes text; one whose card says nothing of it, anything.
pub(in crate::fleet) fn text(card: &ModelCard) -> Option<Text> {
    let says_nothing = card.0.get("model_type").is_none();
    let answers = |kind| says_nothing || card.serves(kind);
    takes_text(card).then(|| Text { chat: answers(ModelType::Chat), completions: answers(ModelType::Completions) })
}

/// A place where a model's tokenizer and templates may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fleet) struct Place {
    /// The same for the same content, as far as the card says.
    pub(in crate::fleet) content: String,
    pub(in crate::fleet) files: Files,
    /// In words.
    pub(in crate::fleet) told: String,
}

/// Where the card says that they are: its files one by one, else the folder it was made of. And why the former cannot be used.
pub(in crate::fleet) fn places(card: &ModelCard) -> (Vec<Place>, Option<String>) {
    let folder = card.source_path().map(Path::new).filter(|path| path.is_absolute()).map(|path| Place {
        content: format!("folder {}", path.display()),
        files: Files::in_folder(path),
        told: format!("folder {} of its card", path.display()),
    });
    match listed(card) {
        Ok(listed) => ([Some(listed), folder].into_iter().flatten().collect(), None),
        Err(reason) => (folder.into_iter().collect(), Some(reason)),
    }
}

/// The files that the card lists.
fn listed(card: &ModelCard) -> Result<Place, String> {
    let tokenizer = card.tokenizer_file().ok_or("its card names no tokenizer")?;
    if tokenizer.role == FileRole::Tokenizer(TokenizerKind::Tiktoken) {
        return Err("its tokenizer is a tiktoken vocabulary, and only tokenizer.json can be read".to_owned());
    }
    let tokenizer = file(tokenizer)?;
    let optional = |named: Option<CardFile<'_>>| named.map(file).transpose();
    let beside = |name: &str| tokenizer.path.parent().map(|folder| File::new(folder.join(name)));
    let tokenizer_config = optional(card.tokenizer_config_file())?.or_else(|| beside("tokenizer_config.json"));
    let template = optional(card.chat_template_file().map(|template| template.file))?;
    let files = Files {
        tokenizer_config,
        special_tokens_map: beside("special_tokens_map.json"),
        chat_templates: template.into_iter().collect(),
        tool_use_template: None,
        config: optional(card.config_file())?,
        generation_config: optional(card.generation_config_file())?,
        tokenizer,
    };
    let told = format!("files of its card, {} first", files.tokenizer.path.display());
    Ok(Place { content: content(&files), files, told })
}

/// The sums of the files, or their paths where nobody vouched for what is in them.
fn content(files: &Files) -> String {
    let sum = |file: &File| file.blake3.clone().unwrap_or_else(|| file.path.display().to_string());
    let others = [&files.tokenizer_config, &files.config, &files.generation_config];
    let others = others.into_iter().map(|file| file.as_ref().map(sum).unwrap_or_default());
    let sums = std::iter::once(sum(&files.tokenizer)).chain(others).chain(files.chat_templates.iter().map(sum));
    sums.collect::<Vec<_>>().join(" ")
}

/// A file on a disk of this host. Where it is, and is another one than the card means, reading it says so by its sum.
fn file(named: CardFile<'_>) -> Result<File, String> {
    let path = PathBuf::from(named.path);
    if !path.is_absolute() {
        return Err(format!("its card names {}, which is no path on a disk", named.path));
    }
    match named.size {
        Some(size) if size > MOST_FILE_BYTES => Err(format!("{} has {size} bytes, and {MOST_FILE_BYTES} are read", named.path)),
        Some(_) | None => Ok(File { path, blake3: named.blake3.map(str::to_owned) }),
    }
}

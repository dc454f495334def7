//! The files a card names. A path is one on a disk that router and worker share, or a URL at which the worker itself answers.

use serde_json::Value;

use super::ModelCard;

/// What checksums begin with.
const CHECKSUM: &str = "blake3:";

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardFile<'a> {
    /// What it is for.
    pub role: FileRole,
    /// A path, or a URL.
    pub path: &'a str,
    /// The BLAKE3 hash of its content, in hex.
    pub blake3: Option<&'a str>,
    /// Its length in bytes.
    pub size: Option<u64>,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileRole {
    /// `config.json`.
    Config,
    /// The tokenizer.
    Tokenizer(TokenizerKind),
    /// `tokenizer_config.json`: special tokens, and often the chat template.
    TokenizerConfig,
    /// The chat template in a file of its own.
    ChatTemplate,
    /// `generation_config.json`: ends of sequence.
    GenerationConfig,
}

/// A tokenizer's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenizerKind {
    /// `tokenizer.json`.
    HuggingFace,
    /// A tiktoken vocabulary.
    Tiktoken,
}

/// A chat template in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatTemplateFile<'a> {
    /// The file: a Jinja template, or JSON with one under `chat_template`.
    pub file: CardFile<'a>,
    /// Whether somebody gave it in place of the model's own.
    pub is_custom: bool,
}

impl FileRole {
    /// Where its content is found, as files in a model's folder are named.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Config => "config.json",
            Self::Tokenizer(TokenizerKind::HuggingFace) => "tokenizer.json",
            Self::Tokenizer(TokenizerKind::Tiktoken) => "tiktoken.model",
            Self::TokenizerConfig => "tokenizer_config.json",
            Self::ChatTemplate => "chat_template.jinja",
            Self::GenerationConfig => "generation_config.json",
        }
    }
}

impl ModelCard {
    /// Every file it names.
    pub fn files(&self) -> Vec<CardFile<'_>> {
        let template = self.chat_template_file().map(|template| template.file);
        [self.config_file(), self.tokenizer_file(), self.tokenizer_config_file(), template, self.generation_config_file()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The model's configuration.
    pub fn config_file(&self) -> Option<CardFile<'_>> {
        file(FileRole::Config, self.at(&["model_info", "hf_config_json"])?)
    }

    /// The tokenizer.
    pub fn tokenizer_file(&self) -> Option<CardFile<'_>> {
        let forms = [("hf_tokenizer_json", TokenizerKind::HuggingFace), ("tik_token_model", TokenizerKind::Tiktoken)];
        forms.into_iter().find_map(|(form, kind)| file(FileRole::Tokenizer(kind), self.at(&["tokenizer", form])?))
    }

    /// The tokenizer's configuration.
    pub fn tokenizer_config_file(&self) -> Option<CardFile<'_>> {
        file(FileRole::TokenizerConfig, self.at(&["prompt_formatter", "hf_tokenizer_config_json"])?)
    }

    /// The chat template, if it has a file of its own.
    pub fn chat_template_file(&self) -> Option<ChatTemplateFile<'_>> {
        let forms = ["hf_chat_template", "hf_chat_template_jinja", "hf_chat_template_json"];
        forms.into_iter().find_map(|form| {
            let entry = self.at(&["chat_template_file", form])?;
            let is_custom = entry.get("is_custom").and_then(Value::as_bool).unwrap_or_default();
            Some(ChatTemplateFile { file: file(FileRole::ChatTemplate, entry.get("file").unwrap_or(entry))?, is_custom })
        })
    }

    /// The defaults of generation.
    pub fn generation_config_file(&self) -> Option<CardFile<'_>> {
        file(FileRole::GenerationConfig, self.at(&["gen_config", "hf_generation_config_json"])?)
    }
}

fn file(role: FileRole, entry: &Value) -> Option<CardFile<'_>> {
    let blake3 = entry.get("checksum").and_then(Value::as_str).and_then(|checksum| checksum.strip_prefix(CHECKSUM));
    let path = entry.get("path")?.as_str().filter(|path| !path.is_empty())?;
    Some(CardFile { role, path, blake3, size: entry.get("size").and_then(Value::as_u64) })
}

//! The model folders of `--model-path`, loaded where the tokens of prompts are needed: a folder that cannot be used is
//! found before anything is started, and by `--check`.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use prompt::{Folder, LoadOptions};

use super::{ConfigError, cli::ServeArgs};

/// Whether anything here needs the tokens of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// To route by prefix, or for token-level workers that discovery may find.
    Tokens,
    /// Requests are forwarded as they came.
    Nothing,
}

/// By model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders {
    named: BTreeMap<String, ModelFolder>,
    /// Of every model that has none of its own.
    default: Option<ModelFolder>,
}

/// One folder.
#[derive(Clone, Debug)]
struct ModelFolder {
    dir: PathBuf,
    /// `None` where nobody needs its tokens.
    loaded: Option<Arc<Folder>>,
}

impl Folders {
    /// Reads the folders. A large vocabulary takes seconds.
    pub(super) fn of_args(args: &ServeArgs, use_of: Use) -> Result<Self, ConfigError> {
        let mut folders = Self::default();
        for text in &args.model_path {
            let (name, dir) = match text.split_once('=') {
                Some((name, dir)) => (Some(name.to_owned()), Path::new(dir)),
                // An empty variable, as deployments leave behind, names nothing.
                None => (args.model_name.clone().filter(|name| !name.is_empty()), Path::new(text)),
            };
            let folder = ModelFolder::of(text, dir, use_of)?;
            let again = match name {
                Some(name) => folders.named.insert(name, folder).is_some(),
                None => folders.default.replace(folder).is_some(),
            };
            if again {
                return Err(ConfigError::new("--model-path", text, "one folder per model name"));
            }
        }
        Ok(folders)
    }

    /// The folder of a base model.
    pub(crate) fn of(&self, model: &str) -> Option<Arc<Folder>> {
        self.named(model).or_else(|| self.unnamed())
    }

    /// The folder that was given for the base model by name.
    pub(crate) fn named(&self, model: &str) -> Option<Arc<Folder>> {
        self.named.get(model)?.loaded.clone()
    }

    /// The folder that was given for every model.
    pub(crate) fn unnamed(&self) -> Option<Arc<Folder>> {
        self.default.as_ref()?.loaded.clone()
    }

    /// Those that are loaded, each with the model it is of.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = (&str, &Arc<Folder>)> {
        self.each().filter_map(|(model, folder)| Some((model, folder.loaded.as_ref()?)))
    }

    fn each(&self) -> impl Iterator<Item = (&str, &ModelFolder)> {
        let named = self.named.iter().map(|(name, folder)| (name.as_str(), folder));
        named.chain(self.default.iter().map(|folder| ("every other model", folder)))
    }
}

impl ModelFolder {
    fn of(text: &str, dir: &Path, use_of: Use) -> Result<Self, ConfigError> {
        const ALLOWED: &str =
            "is not usable; allowed is [NAME=]DIR, a folder on this host with a tokenizer.json (hub names are not downloaded)";
        if !dir.is_dir() {
            return Err(ConfigError::new("--model-path", text, ALLOWED));
        }
        let load = || {
            let loaded = Folder::load(dir, &LoadOptions::default());
            loaded.map(Arc::new).map_err(|error| ConfigError::new("--model-path", text, format!("{error}; allowed is {ALLOWED}")))
        };
        let loaded = match use_of {
            Use::Tokens => Some(load()?),
            Use::Nothing => None,
        };
        Ok(Self { dir: dir.to_owned(), loaded })
    }
}

impl fmt::Display for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (model, folder) in self.each() {
            write!(f, "model folder      {model} = {}", folder.dir.display())?;
            match folder.loaded.as_ref().map(|loaded| loaded.report()) {
                Some(report) => {
                    let template = report.chat_template.as_ref().map_or("none, chats are routed by load", String::as_str);
                    writeln!(f, " (tokenizer {:?}, chat template {template})", report.tokenizer)?;
                }
                None => writeln!(f, " (only kv mode and token-level workers use it)")?,
            }
        }
        Ok(())
    }
}

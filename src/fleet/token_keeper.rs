//! The task that keeps one token-level worker: takes over what its records say, and loads the model they name.
//!
//! Where the tokenizer and the templates come from: the folder that the operator gave for the model by name; else the files that
//! the card lists, or the folder it was made of; else the folder that the operator gave for every model. Until there is one, the
//! worker gets no requests, and it is tried again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prompt::Folder;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Fleet,
    clip::clipped,
    keeper,
    library::{Shelf, Unread},
    reach::{Loaded, Text, TokenModel, TokenWorker, Told, card},
    worker::Worker,
};

/// Longest wait before a model that nothing can be read of is tried again.
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Keeps the worker until `stop`.
pub(super) async fn keep(fleet: &Arc<Fleet>, worker: &Arc<Worker>, tokens: &TokenWorker, stop: &CancellationToken) {
    let mut told = tokens.told();
    // What the model was made of that is loaded now.
    let mut loaded: Option<Told> = None;
    let mut said = String::new();
    loop {
        let now = told.borrow_and_update().clone();
        keeper::apply(fleet, worker, now.identity.clone()).await;
        let again = match &loaded {
            Some(before) if before.card == now.card && before.role == now.role => None,
            Some(_) | None => {
                let Some(made) = stop.run_until_cancelled(make(fleet, &now)).await else { return };
                let again = take(worker, tokens, made, &mut said);
                loaded = again.is_none().then_some(now);
                fleet.refresh().await;
                again
            }
        };
        let news = async {
            // Both branches are cancel-safe: a watch, and a timer. The watch's sender lives in the worker.
            tokio::select! {
                changed = told.changed() => changed.is_ok(),
                () = until(again) => true,
            }
        };
        if stop.run_until_cancelled(news).await != Some(true) {
            return;
        }
    }
}

async fn until(again: Option<Instant>) {
    match again {
        Some(again) => tokio::time::sleep_until(again.into()).await,
        None => std::future::pending().await,
    }
}

/// What came of a model.
enum Made {
    Ready { model: Arc<TokenModel>, shelf: Option<Arc<Shelf>>, from: String },
    Text(Text),
    Unsupported(String),
    Unread(Unread),
}

/// Hands the worker what came of its model. Returns when it is worth another try.
fn take(worker: &Worker, tokens: &TokenWorker, made: Made, said: &mut String) -> Option<Instant> {
    match made {
        Made::Ready { model, shelf, from } => {
            let (context, migrations) = (model.context_length, model.migration_limit);
            info!(worker = worker.id(), from = &*clipped(&from), context, migrations, "the worker's model is loaded");
            said.clear();
            tokens.set_model(Loaded::Ready { model, _shelf: shelf });
            None
        }
        Made::Text(text) => {
            info!(worker = worker.id(), "the worker takes text: it is sent what clients send, and by load alone");
            said.clear();
            tokens.set_model(Loaded::Text(text));
            None
        }
        Made::Unsupported(reason) => {
            warn!(worker = worker.id(), reason = &*clipped(&reason), "the worker can be sent no requests");
            tokens.set_model(Loaded::Unsupported(reason));
            None
        }
        Made::Unread(unread) => {
            let reason = format!("its model cannot be loaded: {unread}; give --model-path NAME=DIR");
            if *said != reason {
                warn!(worker = worker.id(), reason = &*clipped(&reason), "the worker gets no requests until its model can be loaded");
                said.clone_from(&reason);
            }
            // What was loaded before is of another card.
            tokens.set_model(Loaded::Failed(reason));
            Some(unread.again)
        }
    }
}

async fn make(fleet: &Fleet, told: &Told) -> Made {
    if let Err(reason) = &told.role {
        return Made::Unsupported(reason.clone());
    }
    if let Some(text) = card::text(&told.card) {
        return Made::Text(text);
    }
    let name = told.identity.models.first().map_or("", |card| &card.base);
    let ready = |folder: Arc<Folder>, shelf, from| {
        let model = Arc::new(TokenModel::new(&told.card, folder, fleet.config.migration_limit));
        Made::Ready { model, shelf, from }
    };
    if let Some(folder) = fleet.config.folders.named(name) {
        return ready(folder, None, format!("--model-path of '{name}', whatever its card says"));
    }
    let (places, unusable) = card::places(&told.card);
    let (mut reasons, mut again): (Vec<String>, _) = (unusable.into_iter().collect(), None);
    for place in places {
        let shelf = fleet.library.shelf(&place.content);
        match fleet.library.folder(&shelf, &place.files).await {
            Ok(folder) => return ready(folder, Some(shelf), place.told),
            Err(unread) => {
                reasons.push(format!("{}: {unread}", place.told));
                again = Some(again.map_or(unread.again, |sooner: Instant| sooner.min(unread.again)));
            }
        }
    }
    if let Some(folder) = fleet.config.folders.unnamed() {
        return ready(folder, None, "--model-path of every model".to_owned());
    }
    let reason = if reasons.is_empty() { "its card names no files of this host".to_owned() } else { reasons.join("; ") };
    Made::Unread(Unread::new(reason, again.unwrap_or_else(|| Instant::now() + RETRY_LONGEST)))
}

//! Whether the cards of one model can be served together. Where they cannot, requests are prepared as the worker says that came
//! first, and who says otherwise gets none: it would read other tokens than were meant. When the first has gone, the next counts.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use tracing::{error, info};
use wire::discovery::{Difference, ModelCard};

use super::{clip::clipped, worker::Worker};

/// A card, and whose it is.
struct Stated<'a> {
    model: &'a str,
    worker: &'a str,
    card: &'a ModelCard,
}

/// Tells each token-level worker whether its card can be served together with those before it.
pub(super) fn judge(workers: &[Arc<Worker>]) {
    let tokens = workers.iter().filter(|worker| !worker.is_draining());
    let tokens: Vec<_> = tokens.filter_map(|worker| Some((worker, worker.tokens()?, worker.tokens()?.stated()?))).collect();
    let stated = tokens.iter().map(|(worker, _, (model, card))| Stated { model, worker: worker.id(), card });
    for ((worker, tokens, _), refused) in tokens.iter().zip(refusals(stated)) {
        let again = refused.is_none();
        let reason = refused.clone().unwrap_or_default();
        if !tokens.set_refused(refused) {
            continue;
        }
        if again {
            info!(worker = worker.id(), "the worker's card can be served now: whoever contradicted it has gone");
        } else {
            error!(worker = worker.id(), reason = &*clipped(&reason), "the worker is refused: it gets no requests");
        }
    }
}

/// Why each cannot be served together with the first of its model.
fn refusals<'a>(stated: impl Iterator<Item = Stated<'a>>) -> Vec<Option<String>> {
    let mut first: BTreeMap<&str, Stated<'_>> = BTreeMap::new();
    stated
        .map(|now| match first.entry(now.model) {
            Entry::Vacant(none) => {
                none.insert(now);
                None
            }
            Entry::Occupied(first) => {
                let first = first.get();
                let differs = if *first.card == *now.card { None } else { first.card.disagreement(now.card) };
                differs.map(|differs| {
                    let (model, by, Difference { field, ours, theirs }) = (now.model, first.worker, differs);
                    format!("its card of '{model}' says {field} {theirs}, and that of worker {by}, which came first, says {ours}")
                })
            }
        })
        .collect()
}

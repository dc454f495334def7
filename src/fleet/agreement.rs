//! Whether the cards of one model can be served together. Where they cannot, requests are prepared as the worker says that came
//! first, and who says otherwise gets none: it would read other tokens than were meant. When the first has gone, the next counts.
//!
//! A worker that is dead says nothing while another one lives: its record may stay for as long as its lease. Whose card counts then
//! keeps its place when the dead one revives, so that the model does not change with every worker that comes and goes.

use std::{collections::BTreeMap, sync::Arc};

use engine::health::{Down, State};
use tracing::{error, info};
use wire::discovery::{Difference, ModelCard};

use super::{clip::clipped, worker::Worker};

/// A card, and whose it is.
struct Stated<'a> {
    model: &'a str,
    worker: &'a str,
    card: &'a ModelCard,
    is_dead: bool,
    /// Its card was not served so far.
    was_refused: bool,
}

/// Tells each token-level worker whether its card can be served together with those of others. Returns whether one cannot.
pub(super) fn judge(workers: &[Arc<Worker>]) -> bool {
    let tokens = workers.iter().filter(|worker| !worker.is_draining());
    let tokens: Vec<_> = tokens.filter_map(|worker| Some((worker, worker.tokens()?, worker.tokens()?.stated()?))).collect();
    let all: Vec<_> = tokens
        .iter()
        .map(|(worker, tokens, (model, card))| Stated {
            model,
            worker: worker.id(),
            card,
            is_dead: worker.pulse().state() == State::Down(Down::Dead),
            was_refused: tokens.refused().is_some(),
        })
        .collect();
    let mut is_disputed = false;
    for ((worker, tokens, _), refused) in tokens.iter().zip(refusals(&all)) {
        let again = refused.is_none();
        is_disputed |= !again;
        let reason = refused.clone().unwrap_or_default();
        if !tokens.set_refused(refused) {
            continue;
        }
        if again {
            info!(worker = worker.id(), "the worker's card can be served now: whoever contradicted it has gone or is dead");
        } else {
            error!(worker = worker.id(), reason = &*clipped(&reason), "the worker is refused: it gets no requests");
        }
    }
    is_disputed
}

/// Why each cannot be served together with the others of its model.
fn refusals(all: &[Stated<'_>]) -> Vec<Option<String>> {
    let mut by_model: BTreeMap<&str, Vec<&Stated<'_>>> = BTreeMap::new();
    for one in all {
        by_model.entry(one.model).or_default().push(one);
    }
    let counts: BTreeMap<&str, &Stated<'_>> = by_model.iter().filter_map(|(model, of)| Some((*model, counting(of)?))).collect();
    let refusal = |one: &Stated<'_>| {
        let counts = counts.get(one.model)?;
        let Difference { field, ours, theirs } = differs(counts, one)?;
        let (model, by) = (one.model, counts.worker);
        Some(format!("its card of '{model}' says {field} {theirs}, and that of worker {by}, which came first, says {ours}"))
    };
    all.iter().map(refusal).collect()
}

/// Whose card counts, of those of one model in the order in which they came.
fn counting<'a>(of: &[&'a Stated<'a>]) -> Option<&'a Stated<'a>> {
    let so_far = of.iter().find(|one| !one.was_refused).or(of.first())?;
    if !so_far.is_dead {
        return Some(so_far);
    }
    let alive = || of.iter().filter(|one| !one.is_dead);
    let like_it = alive().find(|one| differs(so_far, one).is_none());
    like_it.or_else(|| alive().next()).or(Some(so_far)).copied()
}

fn differs(counts: &Stated<'_>, one: &Stated<'_>) -> Option<Difference> {
    if *counts.card == *one.card { None } else { counts.card.disagreement(one.card) }
}

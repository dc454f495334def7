//! What every target holds of a list of token ids, without any request.

use std::sync::Arc;

use prompt::{TokenError, Tokens};

use super::{Plan, long};
use crate::{
    app::App,
    fleet::{Member, Served},
};

/// The leading blocks that each rank of `served` holds of `tokens`: by its events alone, as in answers to requests.
///
/// # Errors
/// The pool has no room for a long list.
pub(crate) async fn overlaps(
    app: &App,
    served: &Arc<Served>,
    salt: Option<String>,
    tokens: Vec<u32>,
) -> Result<Vec<(Member, u64)>, TokenError> {
    let members = served.members();
    let cuts = Served::cuts(&members);
    let blocks = cuts.iter().map(|cut| tokens.len() as u64 / u64::from(cut.size.get())).sum();
    let (served, recent, catalog) = (served.clone(), app.recent.clone(), app.fleet.catalog.clone());
    let work = move || {
        let tokens = Tokens { ids: tokens.into(), text_only_prefix: None };
        let plan = Plan::of_tokens(&served, salt.as_deref(), &[tokens], &cuts, &recent);
        let held = plan.held(&catalog, &members);
        members.into_iter().zip(held).map(|(member, held)| (member, held.overlap.device_blocks())).collect()
    };
    long::run(&app.pool, blocks, work).await
}

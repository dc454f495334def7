//! `POST /query`: what every target holds of a list of token ids. No request is made of them and nothing changes.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiError, openai};
use crate::{app::App, fleet::Served, walk};

/// The body. What it does not know it refuses: a name that is misspelt would ask for something else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    model: String,
    token_ids: Vec<u32>,
    #[serde(default)]
    lora_name: Option<String>,
    #[serde(default)]
    cache_salt: Option<String>,
}

pub(super) async fn query(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let held = openai::read_prompt(&app, request.into_body()).await?;
    let body = held.bytes.clone();
    let parsed = app.pool.run_brief(move || serde_json::from_slice::<Query>(&body)).await;
    let query = parsed
        .map_err(|error| ApiError::unavailable(error.to_string()))?
        .map_err(|error| ApiError::invalid(format!("the body is not {{model, token_ids, lora_name?, cache_salt?}}: {error}"), None))?;
    if query.cache_salt.as_deref() == Some("") {
        return Err(ApiError::invalid("cache_salt is empty; leave it out", Some("cache_salt")));
    }
    let view = app.fleet.view();
    let served = view.model(&query.model).cloned().ok_or_else(|| ApiError::unknown_model(&query.model))?;
    let served = match query.lora_name.filter(|name| !name.is_empty()) {
        Some(adapter) => Arc::new(Served::adapter_of(&served, adapter)),
        None => served,
    };
    let overlaps = walk::overlaps(&app, &served, query.cache_salt, query.token_ids).await;
    let overlaps = overlaps.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let mut sizes = overlaps.iter().map(|(member, _)| member.block_size.get());
    let first = sizes.next();
    let targets: Vec<Value> = overlaps
        .iter()
        .map(|(member, blocks)| {
            json!({
                "worker_id": member.worker.id(),
                "dp_rank": member.rank.dp_rank,
                "block_size": member.block_size.get(),
                "overlap_blocks": blocks,
            })
        })
        .collect();
    // One number where there is one.
    let block_size = first.filter(|first| sizes.all(|size| size == *first));
    Ok(Json(json!({"block_size": block_size, "targets": targets})))
}

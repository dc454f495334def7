//! `/v1/models`: what the workers serve, adapters as models of their own.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde_json::{Value, json};

use super::ApiError;
use crate::{app::App, fleet::Served};

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let view = app.fleet.view();
    let cards: Vec<Value> = view.models().filter(|served| served.is_routable()).map(|served| card(&app, served)).collect();
    Json(json!({"object": "list", "data": cards}))
}

pub(super) async fn one(State(app): State<Arc<App>>, path: Result<Path<String>, PathRejection>) -> Result<Json<Value>, ApiError> {
    let id = super::named(path, "model")?;
    let view = app.fleet.view();
    let served = view.model(&id).filter(|served| served.is_routable()).ok_or_else(|| ApiError::unknown_model(&id))?;
    Ok(Json(card(&app, served)))
}

fn card(app: &App, served: &Served) -> Value {
    json!({
        "id": served.name,
        "object": "model",
        "created": app.started_unix,
        "owned_by": "dynamo",
        "root": served.name,
        "parent": served.adapter.as_ref().map(|_| &served.base),
        "max_model_len": served.max_model_len,
        "context_window": served.max_model_len,
    })
}

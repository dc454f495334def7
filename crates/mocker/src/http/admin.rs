//! Routes that change something: the cache, the adapters, the faults.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::body;
use super::error::ApiError;
use crate::faults::Faults;

/// `POST /reset_prefix_cache` (vLLM): every rank; false while blocks are in use.
pub(super) async fn reset_prefix_cache(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"success": reset(&app)}))
}

/// `/flush_cache` (SGLang).
pub(super) async fn flush_cache(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match reset(&app) {
        true => (StatusCode::OK, "Cache flushed.\n"),
        false => (StatusCode::BAD_REQUEST, "Cache not flushed: requests are running.\n"),
    }
}

fn reset(app: &App) -> bool {
    // Every rank is asked, also after one that refused.
    let refused = app.ranks.iter().filter(|rank| !rank.reset_cache()).count();
    refused == 0
}

#[derive(Debug, Deserialize)]
struct AdapterBody {
    #[serde(default)]
    lora_name: String,
}

/// `POST /v1/load_lora_adapter {lora_name, ...}`.
pub(super) async fn load_lora_adapter(State(app): State<Arc<App>>, bytes: Bytes) -> Result<String, ApiError> {
    let AdapterBody { lora_name } = body::parse(&bytes)?;
    if lora_name.is_empty() || lora_name == app.config.model {
        return Err(ApiError::bad_request("Both 'lora_name' and 'lora_path' must be provided.".to_owned()));
    }
    app.adapters.load(&lora_name).map_err(ApiError::bad_request)?;
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// `POST /v1/unload_lora_adapter {lora_name}`. Its blocks stay cached and no event is sent.
pub(super) async fn unload_lora_adapter(State(app): State<Arc<App>>, bytes: Bytes) -> Result<String, ApiError> {
    let AdapterBody { lora_name } = body::parse(&bytes)?;
    if !app.adapters.unload(&lora_name) {
        return Err(ApiError::not_found(format!("The lora adapter '{lora_name}' cannot be found."), None));
    }
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

/// `GET /mocker/faults`: the switches as they are.
pub(super) async fn faults(State(app): State<Arc<App>>) -> Json<Faults> {
    Json(app.switches.now())
}

/// `PUT /mocker/faults`: all switches at once; what is left out is off.
pub(super) async fn set_faults(State(app): State<Arc<App>>, bytes: Bytes) -> Result<Json<Faults>, ApiError> {
    let faults: Faults = body::parse(&bytes)?;
    if faults.refuse {
        return Err(ApiError::bad_request("refuse would cut this very connection: stop the process instead".to_owned()).param("refuse"));
    }
    if let Some(status) = faults.status
        && !(400..600).contains(&status)
    {
        return Err(ApiError::bad_request(format!("status {status}: allowed are 400 to 599")).param("status"));
    }
    app.switches.set(|now| *now = faults);
    Ok(Json(faults))
}

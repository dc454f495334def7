//! `/tokenize` and `/detokenize`, and tokenising for the other routes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::body::{self, Chat};
use super::error::ApiError;
use crate::text::{self, Special};

/// Longer texts are tokenised on a thread that may block, in bytes.
const INLINE_BYTES: usize = 2_048;

/// Tokens of a text; a long one does not hold up the other requests.
pub(super) async fn encode(app: &App, text: String, special: Special) -> Result<Vec<u32>, ApiError> {
    let encoded = if text.len() <= INLINE_BYTES {
        app.text.encode(&text, special)
    } else {
        let tokenizer = app.text.clone();
        match tokio::task::spawn_blocking(move || tokenizer.encode(&text, special)).await {
            Ok(encoded) => encoded,
            Err(error) => Err(error.to_string()),
        }
    };
    encoded.map_err(ApiError::bad_request)
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenizeBody {
    model: Option<String>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(flatten)]
    chat: Chat,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    return_token_strs: Option<bool>,
}

/// `POST /tokenize`: a prompt (with special tokens unless told otherwise) or a chat (without).
pub(super) async fn tokenize(State(app): State<Arc<App>>, bytes: Bytes) -> Result<Json<Value>, ApiError> {
    let body: TokenizeBody = body::parse(&bytes)?;
    app.adapter(body.model.as_deref())?;
    let (text, special) = match body.prompt {
        Some(prompt) => (prompt, body.add_special_tokens.unwrap_or(true)),
        None => {
            let (messages, ending) = body.chat.read()?;
            (text::render(messages, ending), body.add_special_tokens.unwrap_or(false))
        }
    };
    let tokens = encode(&app, text, if special { Special::Add } else { Special::Leave }).await?;
    let names = body.return_token_strs.unwrap_or(false).then(|| tokens.iter().map(|&token| app.text.name(token)).collect::<Vec<_>>());
    Ok(Json(json!({"count": tokens.len(), "max_model_len": app.config.max_model_len, "tokens": tokens, "token_strs": names})))
}

#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeBody {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// `POST /detokenize`.
pub(super) async fn detokenize(State(app): State<Arc<App>>, bytes: Bytes) -> Result<Json<Value>, ApiError> {
    let body: DetokenizeBody = body::parse(&bytes)?;
    app.adapter(body.model.as_deref())?;
    let text = app.text.decode(&body.tokens).map_err(ApiError::bad_request)?;
    Ok(Json(json!({"prompt": text})))
}

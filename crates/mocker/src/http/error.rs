//! Errors in vLLM's shape.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::model::Refused;

/// An answer that is no success.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message, param: None }
    }

    /// A body whose shape is wrong.
    pub(super) fn invalid(message: String, param: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "Bad Request", message, param: Some(param) }
    }

    pub(super) fn not_found(message: String, param: Option<&'static str>) -> Self {
        Self { status: StatusCode::NOT_FOUND, kind: "NotFoundError", message, param }
    }

    pub(super) fn param(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    /// A status asked for by a fault switch, or what a dying engine answers.
    pub(super) fn status(status: StatusCode, message: String) -> Self {
        let kind = if status.is_client_error() { "BadRequestError" } else { "InternalServerError" };
        Self { status, kind, message, param: None }
    }

    pub(super) fn refused(refused: Refused, max_model_len: u32) -> Self {
        match refused {
            Refused::Empty => Self::bad_request("You must pass at least one prompt".to_owned()),
            Refused::TooLong { tokens } => Self::bad_request(format!(
                "This model's maximum context length is {max_model_len} tokens. However, your prompt contains {tokens} input tokens, which \
                 exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value={tokens})"
            ))
            .param("input_tokens"),
            Refused::Busy => Self::status(StatusCode::SERVICE_UNAVAILABLE, refused.to_string()),
        }
    }

    pub(super) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16()}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

/// An answer in the shape of FastAPI's own errors.
pub(super) fn detail(status: StatusCode, detail: &str) -> Response {
    (status, Json(json!({"detail": detail}))).into_response()
}

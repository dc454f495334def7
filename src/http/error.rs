//! Errors as OpenAI clients know them: a status and `{"error": {"message", "type", "param", "code"}}`.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::json;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// 400: the request cannot be right; `param` names the field or header.
    pub(crate) fn invalid(message: impl Into<String>, param: Option<&str>) -> Self {
        Self { param: param.map(str::to_owned), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400 as the body reader found it.
    pub(crate) fn body(error: &prompt::BadRequest) -> Self {
        Self { code: error.code, ..Self::invalid(error.message.clone(), error.param.as_deref()) }
    }

    /// 400 for a prompt that the model's context does not hold.
    pub(crate) fn too_long(message: impl Into<String>, param: &str) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::invalid(message, Some(param)) }
    }

    /// 400 for a request whose answer is not kept whole.
    pub(crate) fn answer_too_large(message: impl Into<String>) -> Self {
        Self { code: Some("answer_too_large"), ..Self::invalid(message, None) }
    }

    /// 404 for a model that nobody serves.
    pub(crate) fn unknown_model(model: &str) -> Self {
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, format!("the model '{model}' does not exist; GET /v1/models lists those that do"))
        }
    }

    /// 404 for a route or thing that is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 405.
    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// 403 for an admin change from another host.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 408: the client did not go on with what it had begun.
    pub(crate) fn too_slow(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// 409.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// 413 with the limit.
    pub(crate) fn too_large(limit_bytes: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request body is larger than {limit_bytes} bytes"))
    }

    /// A 413 also names the option that sets the limit.
    pub(crate) fn limited_by(mut self, option: &str) -> Self {
        if self.status == StatusCode::PAYLOAD_TOO_LARGE {
            self.message = format!("{} ({option})", self.message);
        }
        self
    }

    /// 503: nobody can take the request now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// 503: this process holds as much as it may.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self { code: Some("overloaded"), ..Self::unavailable(message) }
    }

    /// Whether it says that this process holds as much as it may.
    pub(crate) fn is_overload(&self) -> bool {
        self.code == Some("overloaded")
    }

    /// 502: workers were tried and failed.
    pub(crate) fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, message)
    }

    /// 508: the request has come back, or has passed too many frontends.
    pub(crate) fn circle(message: impl Into<String>) -> Self {
        Self { code: Some("loop_detected"), ..Self::new(StatusCode::LOOP_DETECTED, message) }
    }

    /// An engine's own failure, where it came without a word.
    pub(crate) fn engine(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, message)
    }

    /// 504: a worker did not answer in time.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, message)
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::FORBIDDEN => "permission_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({
            "error": { "message": self.message, "type": self.kind(), "param": self.param, "code": self.code }
        });
        (self.status, Json(body)).into_response()
    }
}

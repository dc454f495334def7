//! The HTTP surface: OpenAI's endpoints, health, metrics, and the admin routes.

mod admin;
mod dump;
mod error;
mod health;
mod models;
mod openai;
mod query;
mod route;
mod via;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Request, rejection::PathRejection},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, delete, get, post},
};
use http::{Method, StatusCode, Uri};

pub(crate) use dump::Dumps;
pub(crate) use error::ApiError;
pub(crate) use health::Readiness;
pub(crate) use openai::Bodies;
#[cfg(test)]
pub(crate) use openai::read;

use crate::app::App;

/// What clients use.
pub(crate) fn public(app: &Arc<App>) -> Router {
    routes(app, Router::new())
}

/// What clients use, and the admin routes beside it.
pub(crate) fn public_with_admin(app: &Arc<App>) -> Router {
    routes(app, admin_routes())
}

/// The admin routes alone.
pub(crate) fn admin_only(app: &Arc<App>) -> Router {
    finish(app, admin_routes())
}

fn routes(app: &Arc<App>, router: Router<Arc<App>>) -> Router {
    let router = router
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(health::health))
        .route("/live", get(health::live))
        .route("/ready", get(health::ready))
        .route("/metrics", get(health::metrics));
    finish(app, router)
}

fn admin_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/workers", get(admin::list).post(admin::add))
        .route("/workers/{id}", delete(admin::remove))
        .route("/reset_prefix_cache", post(admin::reset))
        .route("/route", post(route::route))
        .route("/query", post(query::query))
        .route("/dump", get(dump::dump))
}

fn finish(app: &Arc<App>, router: Router<Arc<App>>) -> Router {
    router
        .fallback(any(unknown))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(errors_have_bodies))
        .layer(middleware::from_fn_with_state(app.clone(), via::refuse_circles))
        .with_state(app.clone())
}

/// The last part of a path. The framework's own refusal has no body in OpenAI's shape.
fn named(path: Result<Path<String>, PathRejection>, param: &'static str) -> Result<String, ApiError> {
    match path {
        Ok(Path(name)) => Ok(name),
        Err(error) => Err(ApiError::invalid(format!("the path names no {param}: {}", error.body_text()), Some(param))),
    }
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is no route {method} {}", uri.path()))
}

/// The framework answers 405 with an empty body; ours has one.
async fn errors_have_bodies(request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow = response.headers().get(http::header::ALLOW).cloned();
    let mut response = ApiError::wrong_method(format!("{} does not take {method}", uri.path())).into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(http::header::ALLOW, allow);
    }
    response
}

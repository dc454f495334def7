//! Refuses what has gone in a circle among frontends, on every route, so that no probe or question takes one for an engine.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::ApiError;
use crate::{
    app::App,
    fleet::via::{MOST_BEFORE, Way},
};

pub(super) async fn refuse_circles(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.fleet.process.way(request.headers()) {
        Way::Open => next.run(request).await,
        Way::Back { worker, others } => {
            let reason = app.fleet.led_back(worker, others);
            ApiError::circle(format!("the request came back to the frontend that sent it: {reason}; remove that worker")).into_response()
        }
        Way::TooLong => {
            let message = format!(
                "the request has passed more than {MOST_BEFORE} frontends, so that they seem to send it in a circle; look at their workers"
            );
            ApiError::circle(message).into_response()
        }
    }
}

//! Paths and answers, and who may ask: a page in the operator's browser must not.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::token::Token;
use super::{View, render};
use crate::drain::DrainRequest;
use crate::shared::trace::{TraceError, TraceRequest};

/// What a request may have in it, bytes.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// `/healthz`, `/readyz`, `/metrics`.
pub(super) fn health(view: Arc<dyn View>) -> Router {
    probes().fallback(unknown).layer(middleware::map_response(close)).with_state(view)
}

/// The same, `/api/v1/topology` and `/api/v1/trace`, for this machine or whoever has the token; and what only the latter may.
pub(super) fn admin(view: Arc<dyn View>, token: Token) -> Router {
    let guard = middleware::from_fn_with_state(Arc::new(token), guard);
    let drain = get(drain_status).post(drain).delete(cancel_drain).layer(middleware::from_fn(needs_token));
    let router = probes().route("/api/v1/topology", get(topology)).route("/api/v1/trace", post(trace));
    let router = router.route("/api/v1/drain", drain).fallback(unknown);
    router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).layer(guard).layer(middleware::map_response(close)).with_state(view)
}

fn probes() -> Router<Arc<dyn View>> {
    Router::new()
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
}

async fn unknown(uri: Uri) -> Response {
    refusal(StatusCode::NOT_FOUND, &format!("there is no {}", uri.path()))
}

/// One request a connection, so that a connection's time bounds a request's.
async fn close(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn readiness(State(view): State<Arc<dyn View>>) -> Response {
    let readiness = view.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(view): State<Arc<dyn View>>) -> Response {
    match render::metrics(view.samples()) {
        Ok(text) => ([(CONTENT_TYPE, render::CONTENT_TYPE)], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn topology(State(view): State<Arc<dyn View>>) -> Response {
    match view.topology() {
        Some(topology) => Json(topology).into_response(),
        None => refusal(StatusCode::NOT_FOUND, "this broker has no [mesh]"),
    }
}

async fn trace(State(view): State<Arc<dyn View>>, asked: Result<Json<TraceRequest>, JsonRejection>) -> Response {
    let Json(asked) = match asked {
        Ok(asked) => asked,
        Err(rejection) => return refusal(rejection.status(), &rejection.body_text()),
    };
    match view.trace(asked).await {
        Ok(trace) => Json(trace).into_response(),
        Err(error) => {
            let status = match error {
                TraceError::NoMesh => StatusCode::NOT_FOUND,
                TraceError::Topic(_) | TraceError::QoS(_) => StatusCode::BAD_REQUEST,
                TraceError::Busy => StatusCode::TOO_MANY_REQUESTS,
            };
            refusal(status, &error.to_string())
        }
    }
}

async fn drain_status(State(view): State<Arc<dyn View>>) -> Response {
    Json(view.drain_status()).into_response()
}

async fn drain(State(view): State<Arc<dyn View>>, asked: Result<Json<DrainRequest>, JsonRejection>) -> Response {
    match asked {
        Ok(Json(asked)) => Json(view.drain(Some(asked))).into_response(),
        Err(rejection) => refusal(rejection.status(), &rejection.body_text()),
    }
}

async fn cancel_drain(State(view): State<Arc<dyn View>>) -> Response {
    Json(view.drain(None)).into_response()
}

/// Behind [`guard`]: whoever says a token has said the right one.
async fn needs_token(request: Request, next: Next) -> Response {
    match text(request.headers(), &AUTHORIZATION).is_some_and(|value| value.starts_with("Bearer ")) {
        true => next.run(request).await,
        false => refusal(StatusCode::UNAUTHORIZED, "this needs the admin token (Authorization: Bearer ...)"),
    }
}

fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

/// Lets pass who has the token, and who addresses this machine by its loopback name from no foreign page: a name that somebody else's DNS
/// leads to us, or a page from elsewhere, does not get through.
async fn guard(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let bearer = text(headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if let Some(bearer) = bearer {
        return if token.is(bearer) {
            next.run(request).await
        } else {
            refusal(StatusCode::UNAUTHORIZED, "this is not the admin token")
        };
    }
    if is_own(headers) {
        return next.run(request).await;
    }
    refusal(
        StatusCode::FORBIDDEN,
        "only by a loopback address and from no other site, or with the admin token (Authorization: Bearer ...)",
    )
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn is_own(headers: &HeaderMap) -> bool {
    let Some(host) = text(headers, &HOST) else { return false };
    let is_same_site = headers.get(ORIGIN).is_none_or(|origin| origin.as_bytes() == format!("http://{host}").as_bytes());
    is_same_site && names_loopback(host)
}

fn names_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    // With a user name before it (which no browser sends here) it is longer than its host.
    let name = if host.starts_with(authority.host()) { authority.host() } else { return false };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_ours() {
        for host in ["localhost", "localhost:9883", "127.0.0.1:1", "127.9.9.9", "[::1]:9883", "[::1]"] {
            assert!(names_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com:9883",
            "10.0.0.1",
            "127.0.0.1.example.com",
            "[::2]:1",
            "evil@localhost",
            "a b",
        ] {
            assert!(!names_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_foreign_page_is_not_ours() {
        let ours = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("127.0.0.1:9883"))]);
            headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin))));
            is_own(&headers)
        };
        assert!(ours(None) && ours(Some("http://127.0.0.1:9883")));
        for origin in ["http://127.0.0.1:1", "https://127.0.0.1:9883", "http://evil.example", "null", ""] {
            assert!(!ours(Some(origin)), "{origin}");
        }
        assert!(!is_own(&HeaderMap::new()));
    }
}

//! Requests and their answers.

use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN},
};
use serde::Serialize;

use super::{Desk, exposition, report};
use crate::stats::books::{Books, Phase};

/// What [`answer`] gives.
pub(super) type Answer = Response<Full<Bytes>>;

/// The largest body of a request: the name of a level.
const BODY: usize = 256;

const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";

const INDEX: &str = "\
relay's admin listener

GET  /metrics      OpenMetrics, for Prometheus
GET  /healthz      200 while the process runs
GET  /readyz       200 while clients are accepted
GET  /status       all of it in one JSON object, without the single connections
GET  /routes       routes in JSON
GET  /connections  live connections in JSON
PUT  /log-level    off, error, warn, info, debug or trace
POST /reload       read the settings again
";

/// Answers one request.
pub(super) async fn answer(request: Request<Incoming>, desk: Arc<Desk>) -> Answer {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    // A browser names the page that it asks for; no page has a say here.
    if !reads && request.headers().contains_key(ORIGIN) {
        return text(StatusCode::FORBIDDEN, "not for web pages\n");
    }
    let books = &desk.books;
    match (request.uri().path(), request.method().as_str()) {
        ("/", "GET" | "HEAD") => text(StatusCode::OK, INDEX),
        ("/healthz", "GET" | "HEAD") => text(StatusCode::OK, "ok\n"),
        ("/readyz", "GET" | "HEAD") => ready(books.phase()),
        ("/metrics", "GET" | "HEAD") => aside(books, metrics).await,
        ("/status", "GET" | "HEAD") => aside(books, |books| json(&report::status(books))).await,
        ("/routes", "GET" | "HEAD") => aside(books, |books| json(&report::routes(books))).await,
        ("/connections", "GET" | "HEAD") => {
            aside(books, |books| json(&report::connections(books))).await
        }
        ("/log-level", "PUT") => level(request, &desk).await,
        ("/reload", "POST") => reload(&desk).await,
        ("/log-level", _) => not_so("PUT"),
        ("/reload", _) => not_so("POST"),
        ("/" | "/healthz" | "/readyz" | "/metrics" | "/status" | "/routes" | "/connections", _) => {
            not_so("GET, HEAD")
        }
        _ => text(StatusCode::NOT_FOUND, "no such page; / lists them\n"),
    }
}

fn ready(phase: Phase) -> Answer {
    match phase {
        Phase::Serving => text(StatusCode::OK, "serving\n"),
        Phase::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        Phase::Draining => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
    }
}

/// Makes the answer beside the tasks that carry connections, which many connections would hold up.
async fn aside(books: &Arc<Books>, make: fn(&Arc<Books>) -> Answer) -> Answer {
    let books = books.clone();
    let made = tokio::task::spawn_blocking(move || make(&books)).await;
    made.unwrap_or_else(|_| {
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "a fault of relay's own\n",
        )
    })
}

fn metrics(books: &Arc<Books>) -> Answer {
    match exposition::text(books) {
        Ok(told) => of(StatusCode::OK, OPENMETRICS, told),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write metrics\n"),
    }
}

async fn level(request: Request<Incoming>, desk: &Desk) -> Answer {
    let body = Limited::new(request.into_body(), BODY).collect().await;
    let name = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned());
    let done = name.map_err(|error| error.to_string());
    match done.and_then(|name| (desk.set_level)(&name).map(|()| name)) {
        Ok(name) => {
            tracing::info!(level = name, "log level changed");
            text(StatusCode::OK, &format!("{name}\n"))
        }
        Err(error) => text(StatusCode::BAD_REQUEST, &format!("{error}\n")),
    }
}

async fn reload(desk: &Desk) -> Answer {
    match desk.control.reload().await {
        Ok(changes) => text(StatusCode::OK, &format!("{changes}\n")),
        Err(error) => text(StatusCode::CONFLICT, &format!("{error}\n")),
    }
}

fn not_so(allowed: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allowed}\n"));
    let headers = answer.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(told) => of(StatusCode::OK, JSON, told + "\n"),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write JSON\n"),
    }
}

fn text(status: StatusCode, told: &str) -> Answer {
    of(status, TEXT, told.to_owned())
}

fn of(status: StatusCode, kind: &'static str, told: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(told)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

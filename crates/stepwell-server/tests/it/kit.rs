//! Helpers of several test modules: requests to a router, server-sent events, and waiting for a condition.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use serde_json::Value;
use tower_service::Service;

/// A response with its whole body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Asserts that the response is a problem with this status and code. Returns the problem.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        for field in ["type", "title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        assert!(problem["retryable"].is_boolean(), "{problem}");
        problem
    }
}

/// A request that is being built.
pub(crate) struct TestRequest {
    request: axum::http::request::Builder,
    body: Body,
}

pub(crate) fn get(path: &str) -> TestRequest {
    ask(Method::GET, path)
}

pub(crate) fn post(path: &str) -> TestRequest {
    ask(Method::POST, path)
}

pub(crate) fn put(path: &str) -> TestRequest {
    ask(Method::PUT, path)
}

pub(crate) fn delete(path: &str) -> TestRequest {
    ask(Method::DELETE, path)
}

pub(crate) fn ask(method: Method, path: &str) -> TestRequest {
    TestRequest { request: Request::builder().method(method).uri(path), body: Body::empty() }
}

impl TestRequest {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Sets the `Authorization` header.
    pub(crate) fn by(self, key: &str) -> Self {
        self.header("authorization", key)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }

    pub(crate) fn form(self, body: &str) -> Self {
        self.header("content-type", "application/x-www-form-urlencoded").body(body.to_owned())
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request and returns the response, whose body may still be streaming.
    pub(crate) async fn begin(self, router: &Router) -> Response {
        router.clone().call(self.request.body(self.body).unwrap()).await.unwrap()
    }

    /// Sends the request and returns its stream of server-sent events.
    pub(crate) async fn events(self, router: &Router) -> Events {
        let response = self.begin(router).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }

    pub(crate) async fn to(self, router: &Router) -> Reply {
        let (head, body) = self.begin(router).await.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Reply { status: head.status, headers: head.headers, body }
    }
}

/// A stream of server-sent events, read one by one.
pub(crate) struct Events {
    body: BodyDataStream,
    text: String,
}

impl Events {
    /// Returns the id, the name and the data of the next event. `None` = the stream has ended. Panics after 60 seconds.
    pub(crate) async fn next(&mut self) -> Option<(Option<u64>, String, Value)> {
        let next = async {
            loop {
                if let Some((event, rest)) = self.text.split_once("\n\n") {
                    let (event, rest) = (event.to_owned(), rest.to_owned());
                    self.text = rest;
                    let field = |name: &str| {
                        event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                    };
                    let Some(name) = field("event: ") else { continue };
                    let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                    return Some((field("id: ").map(|id| id.parse().unwrap()), name, data));
                }
                let chunk = self.body.next().await?.unwrap();
                self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(60), next).await.unwrap()
    }
}

/// Polls `look` until it returns a value. Panics after 60 seconds.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(60), found).await {
        Ok(found) => found,
        Err(_) => panic!("timed out waiting until {what}"),
    }
}

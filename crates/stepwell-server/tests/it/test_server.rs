//! A server on an in-memory store with two tenants, and for each of them an API key with every permission.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use serde_json::Value;
use stepwell::store::MemoryStore;
use stepwell::{Builder, Engine, Grants};
use stepwell_server::api::{ApiOptions, Server};
use uuid::Uuid;

use crate::kit::{Reply, TestRequest, ask};
use crate::table::granted;

/// The id of the tenant that sends the requests by default.
pub(crate) const OURS: u128 = 1;

pub(crate) struct TestServer {
    pub(crate) router: Router,
    pub(crate) server: Arc<Server>,
    ours: String,
    theirs: String,
}

impl TestServer {
    pub(crate) async fn open() -> TestServer {
        TestServer::with(|engine| engine).await
    }

    /// Opens a server on the engine that `build` configures.
    pub(crate) async fn with(build: impl FnOnce(Builder) -> Builder) -> TestServer {
        let engine = build(Engine::builder(Arc::new(MemoryStore::new()))).start().await.unwrap();
        let server = Arc::new(Server::new(engine, ApiOptions::default()));
        let ours = granted(&server, OURS, Grants::all()).await;
        let theirs = granted(&server, 2, Grants::all()).await;
        TestServer { router: server.clone().router(), server, ours, theirs }
    }

    /// A request of our own tenant.
    pub(crate) fn ask(&self, method: Method, path: &str) -> TestRequest {
        ask(method, path).header("authorization", &self.ours)
    }

    /// Sends a request as the other tenant.
    pub(crate) async fn as_other_tenant(&self, method: Method, path: &str, body: Option<&Value>) -> Reply {
        let asked = ask(method, path).header("authorization", &self.theirs);
        let asked = body.into_iter().fold(asked, TestRequest::json);
        asked.to(&self.router).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.ask(Method::GET, path).to(&self.router).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(Method::POST, path).json(body).to(&self.router).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.ask(Method::PUT, path).json(body).to(&self.router).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.ask(Method::DELETE, path).to(&self.router).await
    }

    /// Posts a text as `application/yaml`.
    pub(crate) async fn post_yaml(&self, path: &str, text: &str) -> Reply {
        let asked = self.ask(Method::POST, path).header("content-type", "application/yaml");
        asked.body(text.to_owned()).to(&self.router).await
    }

    /// Publishes a document and activates it.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Value {
        let path = format!("/v1/workflows/{name}/versions?activate=true");
        let published = self.post_yaml(&path, text).await;
        assert!(published.status.is_success(), "{published:?}");
        published.json()
    }

    /// Starts a workflow and returns the run once it has ended or failed, or after 20 seconds.
    pub(crate) async fn run(&self, workflow: &str, input: Value) -> Value {
        let body = serde_json::json!({"workflow": workflow, "input": input});
        let started = self.post("/v1/runs?wait=20s", &body).await;
        assert_eq!(started.status, 201, "{started:?}");
        started.json()["run"].clone()
    }
}

/// The id of our own tenant as text, for paths.
pub(crate) fn our_tenant() -> String {
    Uuid::from_u128(OURS).to_string()
}
